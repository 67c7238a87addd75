"""How the file is opened: write-ahead logging, and durable commits by default."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig
from tests.engines.sqlite.threads import on_reader, on_writer

NORMAL, FULL = 1, 2


@pytest.mark.parametrize(
    ("options", "synchronous"),
    [
        ("", FULL),
        ("?synchronous=full", FULL),
        ("?synchronous=normal", NORMAL),
        ("?synchronous=NORMAL", NORMAL),
    ],
)
async def test_commits_are_durable_by_default(url: str, options: str, synchronous: int) -> None:
    async with Broker(url + options, config=BrokerConfig(duties=False)) as broker:
        assert await on_writer(broker, "PRAGMA synchronous") == [(synchronous,)]


async def test_the_journal_is_a_write_ahead_log(broker: Broker) -> None:
    assert await on_writer(broker, "PRAGMA journal_mode") == [("wal",)]
    assert await on_reader(broker, "PRAGMA journal_mode") == [("wal",)]


async def test_the_log_stays_short(broker: Broker) -> None:
    """SQLite's own checkpoints stay enabled."""
    [(pages,)] = await on_writer(broker, "PRAGMA wal_autocheckpoint")
    assert 0 < pages <= 10_000


async def test_the_file_stays_the_same_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    async with Broker("sqlite:///jobs.db", config=BrokerConfig(duties=False)) as broker:
        monkeypatch.chdir(there)
        await broker.enqueue("q")
        assert (await broker.stats("q")).pending == 1
    async with broker:
        assert len(await broker.claim("q")) == 1
    assert list(there.iterdir()) == []


async def test_the_log_shrinks_after_a_long_read(broker: Broker, path: Path) -> None:
    """A reader with an open transaction blocks the reuse of the log, so that it grows."""
    log = path.with_name("jobs.db-wal")

    async def write_many() -> None:
        for number in range(100):
            await broker.kv_put(b"large", bytes([number]) * 2**18)

    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM dayjob_kv").fetchone()
        await write_many()
        assert log.stat().st_size > 17 * 2**20
    await write_many()
    await broker.kv_put(b"large", b"small")
    assert log.stat().st_size <= 17 * 2**20
