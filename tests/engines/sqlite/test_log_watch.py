"""A commit notifies the other users of the file, so that no waiting call has to wait for a poll."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, Retention
from dayjob.engines.sqlite import forks, log_watch, threads
from dayjob.engines.sqlite.log_watch import LogWatch, notify
from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND
from tests.support.waiting import turns, with_timeout

QUIET = BrokerConfig(duties=False, retention=Retention(done=60))


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WATCH_INTERVAL", 10 * BOUND)


@pytest.fixture
async def other(url: str, broker: Broker) -> AsyncIterator[Broker]:
    """Another user of the file. Its connections are its own, like those of another process."""
    async with Broker(url, config=QUIET) as other:
        yield other


async def claim_waits(broker: Broker) -> None:
    async with asyncio.timeout(BOUND):
        while not broker._session.waiting_claims.by_queue:
            await turns(1)


async def job_is_claimed(broker: Broker, other: Broker) -> None:
    claiming = asyncio.create_task(broker.claim("q", wait=10 * BOUND))
    await claim_waits(broker)
    enqueued = await other.enqueue("q")
    [job] = await with_timeout(claiming)
    assert job.id == enqueued.id


async def cancel_fires(broker: Broker, other: Broker) -> None:
    enqueued = await broker.enqueue("q")
    [job] = await broker.claim("q")
    await other.cancel(enqueued.id)
    await with_timeout(job.cancel_token.wait())


async def end_is_seen(broker: Broker, other: Broker) -> None:
    enqueued = await broker.enqueue("q")
    waiting = asyncio.create_task(broker.wait(enqueued.id, 10 * BOUND))
    [job] = await other.claim("q")
    await other.ack(job)
    assert (await with_timeout(waiting)).status == "completed"


CHANGES = [job_is_claimed, cancel_fires, end_is_seen]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_commit_elsewhere_wakes_a_waiting_call_without_a_poll(
    no_polls: None, broker: Broker, other: Broker, change: Callable[[Broker, Broker], Awaitable[None]]
) -> None:
    for _ in range(3):
        await change(broker, other)


async def test_the_log_of_a_linked_file_is_watched(no_polls: None, tmp_path: Path, broker: Broker) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.db"
    link.symlink_to(tmp_path / "jobs.db")
    async with Broker(f"sqlite:///{link}", config=QUIET) as linked:
        await job_is_claimed(linked, broker)
        await job_is_claimed(broker, linked)


async def test_a_new_log_is_watched_after_a_fork(no_polls: None, url: str, broker: Broker) -> None:
    """A fork closes the connections. With the last one, SQLite deletes the log."""
    claiming = asyncio.create_task(broker.claim("q", wait=10 * BOUND))
    await claim_waits(broker)
    forks._before()
    forks._after()
    async with Broker(url, config=QUIET) as other:
        await other.enqueue("q")
        await with_timeout(claiming)
        await job_is_claimed(broker, other)


@pytest.mark.parametrize("change", CHANGES)
async def test_without_inotify_the_engine_polls(
    monkeypatch: pytest.MonkeyPatch, url: str, change: Callable[[Broker, Broker], Awaitable[None]]
) -> None:
    monkeypatch.setattr(log_watch, "_open_inotify", lambda: -1)
    async with Broker(url, config=QUIET) as broker, Broker(url, config=QUIET) as other:
        await change(broker, other)


async def test_a_closed_engine_leaves_no_file_descriptor_open(url: str) -> None:
    async def open_and_close() -> int:
        async with Broker(url, config=QUIET) as broker:
            await broker.enqueue("q")
        return sum(1 for _ in os.scandir("/dev/fd"))

    before = await open_and_close()
    assert [await open_and_close() for _ in range(3)] == [before] * 3


async def test_notifications_in_quick_succession_share_a_call_and_the_last_has_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    notified = 0
    calls: list[int] = []
    called = asyncio.Event()

    def on_commit() -> None:
        calls.append(notified)
        called.set()

    watch = LogWatch(str(log), on_commit)
    watch.watch()
    begun = SYSTEM.elapsed()
    for _ in range(500):
        notified += 1
        notify(str(log))
        await turns(1)
    async with asyncio.timeout(BOUND):
        while not calls or calls[-1] < notified:
            called.clear()
            await called.wait()
    took = SYSTEM.elapsed() - begun
    watch.close()
    assert calls[0] == 1
    assert len(calls) <= 2 + took / log_watch._SHORTEST_PAUSE
