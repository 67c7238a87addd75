"""Several processes on one file: each gets its share, and all see one layout and one set of jobs."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from dayjob import Broker
from dayjob.model.job import DedupUntil
from tests.engines.sqlite.roles import enqueue_keys, hammer, open_new
from tests.support.processes import Spawn, receive_from_all, start_together

pytestmark = pytest.mark.slow


async def test_each_of_four_busy_processes_gets_its_share(url: str, broker: Broker, spawn: Spawn) -> None:
    children = await spawn.many(4, hammer, url, 3.0)
    await start_together(children)
    commits: list[int] = await receive_from_all(children)
    assert [await child.wait() for child in children] == [0] * 4, "one met an error"
    assert min(commits) >= sum(commits) / 10, commits
    assert (await broker.stats("q")).pending == sum(commits)
    assert len(await broker.jobs(limit=10**6)) == sum(commits)


async def test_sixteen_processes_may_open_a_new_file_at_once(tmp_path: Path, spawn: Spawn) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(3)]
    children = await spawn.many(16, open_new, [f"sqlite:///{path}" for path in paths])
    for _ in paths:
        await start_together(children)
        assert set(await receive_from_all(children)) == {"closed"}
    assert [await child.wait() for child in children] == [0] * 16

    alone = tmp_path / "alone.db"
    async with Broker(f"sqlite:///{alone}"):
        pass
    for path in paths:
        assert layout(path) == layout(alone)
        async with Broker(f"sqlite:///{path}") as broker:
            assert (await broker.stats("q")).pending == 16
            assert len(await broker.claim("q", limit=20)) == 16


def layout(path: Path) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(path)
    try:
        objects = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        assert connection.execute("SELECT count(*) FROM dayjob_owners").fetchone() == (0,)
        return objects + connection.execute("SELECT key, value FROM dayjob_meta").fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("window", ["claimed", "settled"])
async def test_one_job_per_dedup_key_however_many_processes_enqueue_it(
    url: str, broker: Broker, spawn: Spawn, window: DedupUntil
) -> None:
    keys = [f"key {number}" for number in range(300)]
    orders = [keys, keys[::-1], keys[100:] + keys[:100], keys[200:] + keys[:200]]
    children = [await spawn(enqueue_keys, url, order, window) for order in orders]
    await start_together(children)
    created: Counter[str] = Counter()
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for child, order in zip(children, orders, strict=True):
        for key, (id, was_created) in zip(order, await child.receive(), strict=True):
            created[key] += was_created
            ids[key].add(id)
    assert created == dict.fromkeys(keys, 1)
    assert {len(found) for found in ids.values()} == {1}, "all callers get the id of the one job"
    assert (await broker.stats("q")).pending == len(keys)
