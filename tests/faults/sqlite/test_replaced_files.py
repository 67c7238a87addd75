"""The file is deleted or replaced while it is in use: its users notice, and acknowledge nothing more."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dayjob import App, Broker, BrokerConfig, EngineFenced, Worker
from tests.support.workers import with_timeout

QUIET = BrokerConfig(duties=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def delete(path: Path) -> None:
    for file in path.parent.glob("jobs.db*"):
        file.unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def restore_a_copy(path: Path) -> None:
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    delete(path)
    copy.rename(path)


REPLACEMENTS: list[Callable[[Path], None]] = [delete, move_away, restore_a_copy]


@pytest.mark.parametrize("replace", REPLACEMENTS)
async def test_every_call_is_refused(path: Path, url: str, replace: Callable[[Path], None]) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
        [job] = await broker.claim("q")
        replace(path)
        for call in (
            lambda: broker.enqueue("q"),
            lambda: broker.ack(job),
            lambda: broker.claim("q"),
            lambda: broker.stats("q"),
            lambda: broker.get(job.id),
        ):
            with pytest.raises(EngineFenced, match="was deleted or replaced while it was in use"):
                await with_timeout(call())


@pytest.mark.parametrize("replace", REPLACEMENTS)
async def test_a_waiting_claim_is_woken_and_raises(
    path: Path, url: str, replace: Callable[[Path], None]
) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("other")
        waiting = asyncio.create_task(broker.claim("q", wait=60))
        await broker.enqueue("other")
        replace(path)
        with pytest.raises(EngineFenced):
            await with_timeout(waiting)


async def test_an_idle_worker_ends_with_the_error(path: Path, url: str) -> None:
    app = App(url)

    @app.task
    async def run() -> None: ...

    async with app:
        handle = await run.aenqueue()
        worker = asyncio.create_task(Worker(app).run())
        await with_timeout(handle.aresult())
        delete(path)
        with pytest.raises(EngineFenced):
            await with_timeout(worker)


async def test_a_broker_that_is_opened_again_uses_the_new_file(path: Path, url: str) -> None:
    broker = await Broker(url, config=QUIET).open()
    await broker.enqueue("q")
    delete(path)
    await broker.close()
    async with broker:
        assert (await broker.stats("q")).pending == 0
        assert (await broker.enqueue("q")).created


async def test_closing_does_not_delete_the_log_of_the_new_file(path: Path, url: str, tmp_path: Path) -> None:
    """The last connection to a file deletes its log, by the path. SQLite first compares the inodes."""
    old = await Broker(url, config=QUIET).open()
    await old.enqueue("q")
    delete(path)
    async with Broker(url, config=QUIET) as new:
        enqueued = await new.enqueue("q")
        log = path.with_name("jobs.db-wal")
        before = log.stat().st_ino
        await old.close()
        assert log.stat().st_ino == before
        saved = tmp_path / "saved"
        saved.mkdir()
        for file in path.parent.glob("jobs.db*"):
            shutil.copy(file, saved)
    async with Broker(f"sqlite:///{saved / 'jobs.db'}", config=QUIET) as broker:
        assert [job.id for job in await broker.claim("q")] == [enqueued.id]


async def test_a_folder_that_moves_with_its_file_and_a_link_to_it_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with Broker(f"sqlite:///{tmp_path / 'link' / 'jobs.db'}", config=QUIET) as broker:
        await broker.enqueue("q")
        (tmp_path / "real").rename(tmp_path / "elsewhere")
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        assert (await broker.stats("q")).pending == 1
