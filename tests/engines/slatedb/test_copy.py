"""Copies of a database: complete, refused if they can't be, and usable where the original is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dayjob import Broker, EngineUnavailable, NewJob, Recurring
from dayjob.cli import main
from dayjob.engines.registry import copy_store
from dayjob.engines.slatedb.database import Database
from dayjob.errors import ConfigError
from tests.cli.processes import with_broker
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.roles import hold
from tests.engines.slatedb.test_clock import HOUR, set_back
from tests.support.arrange import KEEP_ALL, quiet
from tests.support.observe import check_counters, everything
from tests.support.processes import Spawn


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"file://{tmp_path}/copy"


async def fill(url: str) -> None:
    """Leave jobs in several states, a claim, a paused queue, a schedule and a key-value pair."""
    async with Broker(url, config=quiet(retention=KEEP_ALL)) as broker:
        await broker.enqueue_many([NewJob("q", bytes(1000)) for _ in range(200)])
        await broker.enqueue("later", delay=HOUR, dedup_key="one")
        acked, dead, _ = await broker.claim("q", limit=3)
        await broker.ack(acked, result=b"result", kv={b"k": b"v"})
        await broker.dead_letter(dead, "wrong")
        await broker.pause("p")
        await broker.schedule(Recurring("hourly", every=HOUR, task="t", queue="q"))


async def test_a_copy_has_everything_and_leaves_the_original_unchanged(url: str, target: str) -> None:
    await fill(url)
    async with Broker(f"{url}?readonly=1", config=QUIET) as broker:
        before = await everything(broker)
    assert await copy_store(url, target) == 201
    async with Broker(target, config=QUIET) as broker:
        assert await everything(broker) == before
        await check_counters(broker)
        assert await broker.kv_get(b"k") == b"v"
        assert len(await broker.schedules()) == 1
        assert not (await broker.enqueue("later", dedup_key="one")).created
    async with Broker(f"{url}?readonly=1", config=QUIET) as broker:
        assert await everything(broker) == before


async def test_claims_in_a_copy_are_orphans_of_an_earlier_process(
    url: str, target: str, spawn: Spawn
) -> None:
    holder = await spawn(hold, url)
    await holder.receive()
    await holder.kill()
    await copy_store(url, target)
    async with Broker(target, config=QUIET) as broker:
        assert (await broker.stats("q")).running == 1
        assert await broker.reap() == 1


async def test_a_database_with_a_last_write_ahead_of_the_clock_can_be_copied(
    url: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
    with monkeypatch.context() as patch:
        set_back(patch, HOUR)
        with pytest.raises(EngineUnavailable, match="copy the database with dayjob copy"):
            await Broker(url, config=QUIET).open()
        assert await copy_store(url, target) == 1
    async with Broker(target, config=QUIET) as broker:
        assert len(await broker.claim("q")) == 1


async def test_a_database_in_use_is_not_copied(url: str, target: str, spawn: Spawn) -> None:
    holder = await spawn(hold, url)
    await holder.receive()
    with pytest.raises(EngineUnavailable, match="has it open"):
        await copy_store(url, target)
    assert await copy_store(f"{url}?takeover=1", target) == 1


async def test_a_copy_that_was_cut_off_can_not_be_opened(
    url: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(url)
    writes = 0
    write = Database.write

    async def fail(self: Database, changes: dict[bytes, bytes | None]) -> object:
        nonlocal writes
        writes += 1
        if writes == 3:
            raise OSError("cut off")
        return await write(self, changes)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", fail)
        with pytest.raises(OSError, match="cut off"):
            await copy_store(url, target)
    with pytest.raises(ConfigError, match="not dayjob's"):
        await Broker(target, config=QUIET).open()
    with pytest.raises(ConfigError, match="a database already"):
        await copy_store(url, target)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["copy", *arguments])


def test_the_command_reports_the_number_of_jobs(url: str, target: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("q"))
    result = run(url, target)
    assert (result.exit_code, result.output) == (0, f"1 jobs copied to {target}.\n")


@pytest.mark.parametrize(
    ("source", "copy"),
    [("sqlite:///a.db", "sqlite:///b.db"), ("file:///tmp/a", "memory://"), ("memory://", "file:///tmp/a")],
)
def test_other_stores_are_refused(source: str, copy: str) -> None:
    result = run(source, copy)
    assert result.exit_code == 2
    assert "only object storage can" in result.output


def test_a_source_that_does_not_exist_is_refused(url: str, target: str) -> None:
    result = run(url, target)
    assert result.exit_code == 2
    assert "there is no database" in result.output
