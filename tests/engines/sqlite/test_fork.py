"""A broker belongs to the process and the event loop that opened it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from dayjob import Broker, BrokerConfig, Closed
from tests.engines.sqlite.roles import (
    fork_while_locked_out,
    fork_while_waiting,
    open_after_fork,
    use_after_fork,
)
from tests.support.processes import Spawn

QUIET = BrokerConfig(duties=False)


@pytest.mark.slow
async def test_a_broker_is_closed_in_a_forked_child_and_works_in_the_parent(url: str, spawn: Spawn) -> None:
    child = await spawn(use_after_fork, url)
    error = await child.receive()
    assert url in error
    assert f"was opened by process {child.pid}" in error
    assert await child.receive() == "fine"
    assert await child.wait() == 0


@pytest.mark.slow
async def test_a_forked_child_with_its_own_broker_loses_no_job(url: str, spawn: Spawn) -> None:
    """SQLite's locks do not survive a fork. On a file that the parent had open, the child's would fail.

    So the child is refused. If it were not, the jobs that it stored after its parent closed must still exist.
    """
    child = await spawn(open_after_fork, url)
    stored: list[str] = await child.receive()
    assert await child.wait() == 0
    async with Broker(url, config=QUIET) as broker:
        assert set(stored) <= {job.id for job in await broker.jobs("q")}


@pytest.mark.slow
async def test_a_change_by_another_process_during_a_fork_is_detected(url: str, spawn: Spawn) -> None:
    child = await spawn(fork_while_waiting, url)
    assert await child.receive() < 2
    assert await child.wait() == 0


@pytest.mark.slow
async def test_a_fork_does_not_wait_for_the_write_lock_of_another_process(url: str, spawn: Spawn) -> None:
    async with Broker(url, config=QUIET):
        pass
    child = await spawn(fork_while_locked_out, f"{url}?timeout=100")
    assert await child.receive() == "ready"
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        child.proceed()
        assert await child.receive() == "forked"
    id = await child.receive()
    assert await child.wait() == 0
    async with Broker(url, config=QUIET) as broker:
        assert [job.id for job in await broker.jobs("q")] == [id]


CALLS: list[Callable[[Broker], Awaitable[object]]] = [
    lambda broker: broker.enqueue("q"),
    lambda broker: broker.claim("q", wait=1),
    lambda broker: broker.stats("q"),
    lambda broker: broker.kv_get(b"key"),
    lambda broker: broker.open(),
]


async def all_are_refused(broker: Broker) -> None:
    for call in CALLS:
        with pytest.raises(Closed, match="was opened on another event loop"):
            await call(broker)


async def test_a_broker_is_closed_on_another_loop(broker: Broker) -> None:
    await asyncio.to_thread(asyncio.run, all_are_refused(broker))
    await broker.enqueue("q")


async def test_another_loop_can_not_close_a_broker(broker: Broker) -> None:
    async def close() -> None:
        with pytest.raises(Closed, match="was opened on another event loop"):
            await asyncio.wait_for(broker.close(), 5)

    await asyncio.to_thread(asyncio.run, close())
    await broker.enqueue("q")


def test_a_broker_of_an_ended_loop_is_closed_and_can_be_discarded(url: str) -> None:
    """As when a script calls ``asyncio.run`` twice."""

    async def open_one() -> Broker:
        return await Broker(url).open()

    before = set(threading.enumerate())
    broker = asyncio.run(open_one())
    asyncio.run(all_are_refused(broker))
    asyncio.run(asyncio.wait_for(broker.close(), 5))
    assert set(threading.enumerate()) <= before

    async def open_again() -> None:
        async with broker:
            await broker.enqueue("q")

    asyncio.run(open_again())
