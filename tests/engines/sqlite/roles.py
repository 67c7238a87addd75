"""The functions that the child processes of these tests run."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from resource import RUSAGE_SELF, getrusage
from typing import Any

from dayjob import Broker, BrokerConfig, Closed, DayjobError, NewJob
from dayjob.engines.base import DocumentWrite
from dayjob.model.job import DedupUntil
from dayjob.runtime.clock import SYSTEM
from tests.support.processes import die, pause, send_to_test, wait_for_test

QUIET = BrokerConfig(duties=False)

UNPRIVILEGED = 65534


async def hammer(url: str, seconds: float) -> None:
    """Enqueue one by one for some seconds; report the number."""
    async with Broker(url, config=QUIET) as broker:
        send_to_test("ready")
        await wait_for_test()
        end = SYSTEM.elapsed() + seconds
        count = 0
        while SYSTEM.elapsed() < end:
            await broker.enqueue("q")
            count += 1
        send_to_test(count)


async def open_new(urls: list[str]) -> None:
    """Open each file together with others, and enqueue a job in it."""
    for url in urls:
        send_to_test("ready")
        await wait_for_test()
        async with Broker(url) as broker:
            await broker.enqueue("q")
        send_to_test("closed")


async def enqueue_keys(url: str, keys: list[str], window: DedupUntil) -> None:
    """Enqueue a job for each key, all at once; report the replies."""
    async with Broker(url, config=QUIET) as broker:
        send_to_test("ready")
        await wait_for_test()
        answers = await asyncio.gather(
            *(broker.enqueue("q", dedup_key=key, dedup_until=window) for key in keys)
        )
        send_to_test([(answer.id, answer.created) for answer in answers])


async def count_up(url: str, times: int) -> None:
    """Increment a document that others increment too, each time with a job; report the lost races."""
    async with Broker(url, config=QUIET) as broker:
        engine = broker._engine
        send_to_test("ready")
        await wait_for_test()
        counted = lost = 0
        while counted < times:
            found = (await engine.documents("k"))[1]
            expected = found[0].value if found else None
            value = str(int(expected or b"0") + 1).encode()
            job = broker._validator.insertion(NewJob("q", value))
            if await engine.compare_and_set([DocumentWrite("k", "count", expected, value)], [job]):
                counted += 1
            else:
                lost += 1
        send_to_test(lost)


async def claim_and_ack(url: str, count: int, duties: bool) -> None:
    """Claim that many jobs, one by one; report when each claim returned, by the shared clock."""
    async with Broker(url, config=BrokerConfig(duties=duties)) as broker:
        send_to_test("ready")
        for _ in range(count):
            [job] = await broker.claim("q", wait=30)
            returned = SYSTEM.elapsed()
            await broker.ack(job)
            send_to_test(returned)


async def idle(url: str, seconds: int) -> None:
    """Wait for a job that never arrives; report the CPU time of each second."""
    async with Broker(url) as broker:
        waiting = asyncio.create_task(broker.claim("q", wait=60))
        await pause(0.3)
        shares = []
        for _ in range(seconds):
            begun, before = SYSTEM.elapsed(), _used()
            await pause(1)
            shares.append((_used() - before) / (SYSTEM.elapsed() - begun))
        assert not waiting.done()
        waiting.cancel()
        send_to_test(shares)


def _used() -> float:
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def run_until_cancelled(url: str, duties: bool) -> None:
    """Hold a claim until its token fires; report its id, then when it fired."""
    async with Broker(url, config=BrokerConfig(duties=duties)) as broker:
        [job] = await broker.claim("q", wait=30)
        send_to_test(job.id)
        await job.cancel_token.wait()
        send_to_test(SYSTEM.elapsed())
        await broker.mark_cancelled(job)


async def hold(url: str, count: int, lease: float) -> None:
    """Hold claims; ack them on a message of the test."""
    async with Broker(url, config=QUIET) as broker:
        jobs = await broker.claim("q", limit=count, lease=lease)
        send_to_test([job.id for job in jobs])
        await wait_for_test()
        for job in jobs:
            await broker.ack(job)
        send_to_test("acked")


async def close_with_a_claim(url: str, lease: float) -> None:
    """Close the broker while it holds a claim, and live until a message of the test."""
    async with Broker(url, config=QUIET) as broker:
        [job] = await broker.claim("q", lease=lease)
    send_to_test(job.id)
    await wait_for_test()


async def claim_and_die(url: str) -> None:
    """A job that kills its worker."""
    async with Broker(url) as broker:
        [job] = await broker.claim("q", wait=30)
        send_to_test((job.id, job.attempts))
        die()


async def open_without_rights(scratch: str, url: str) -> None:
    """Try to open a file as a user without root rights; report the error."""
    async with Broker(scratch):
        """All modules are imported before: that user may be unable to read the packages."""
    if os.geteuid() == 0:
        os.setegid(UNPRIVILEGED)
        os.seteuid(UNPRIVILEGED)
    try:
        async with Broker(url, config=QUIET):
            send_to_test(["none", ""])
    except DayjobError as error:
        send_to_test([type(error).__name__, str(error)])


async def use_after_fork(url: str) -> None:
    """Use the broker in a forked child; report the error of the child, then whether it still works here."""
    async with Broker(url, config=QUIET) as broker:
        before = await broker.enqueue("q")

        async def use() -> None:
            try:
                await broker.enqueue("q")
            except Closed as error:
                send_to_test(str(error))
            await broker.close()

        fork = _fork(use)
        assert await asyncio.to_thread(os.waitpid, fork, 0) == (fork, 0)
        [job] = await broker.claim("q")
        assert job.id == before.id
        await broker.ack(job)
        send_to_test("fine")


async def fork_while_waiting(url: str) -> None:
    """Wait for a job that another process makes claimable during a fork; report its arrival."""
    path = url.removeprefix("sqlite:///")

    def resume() -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE dayjob_queues SET paused = 0")

    os.register_at_fork(after_in_parent=resume)
    async with Broker(url, config=QUIET) as broker:
        await broker.pause("q")
        await broker.enqueue("q")
        waiting = asyncio.create_task(broker.claim("q", wait=20))
        await pause(0.2)
        fork = _fork(_nothing)
        assert await asyncio.to_thread(os.waitpid, fork, 0) == (fork, 0)
        begun = SYSTEM.elapsed()
        [job] = await waiting
        send_to_test(SYSTEM.elapsed() - begun)
        await broker.ack(job)


async def fork_while_locked_out(url: str) -> None:
    """Fork while an enqueue waits for the write lock, which the test holds; report the fork, then the job."""
    async with Broker(url, config=QUIET) as broker:
        send_to_test("ready")
        await wait_for_test()
        waiting = asyncio.create_task(broker.enqueue("q"))
        await pause(0.2)
        fork = _fork(_nothing)
        assert await asyncio.to_thread(os.waitpid, fork, 0) == (fork, 0)
        assert not waiting.done()
        send_to_test("forked")
        send_to_test((await waiting).id)


async def _nothing() -> None:
    """The work of a child that is forked only for the fork."""


async def open_after_fork(url: str) -> None:
    """Open another broker in a forked child, and use it after this one is closed; report the stored jobs."""
    opened, closed = os.pipe(), os.pipe()
    stored: list[str] = []

    async def use() -> None:
        try:
            async with Broker(url, config=QUIET) as broker:
                stored.append((await broker.enqueue("q")).id)
                os.write(opened[1], b"!")
                os.read(closed[0], 1)
                stored.append((await broker.enqueue("q")).id)
        except DayjobError:
            os.write(opened[1], b"!")
        send_to_test(stored)

    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
        fork = _fork(use)
        os.read(opened[0], 1)
    os.write(closed[1], b"!")
    assert await asyncio.to_thread(os.waitpid, fork, 0) == (fork, 0)


def _fork(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Return the pid of a forked child that does the work on its own event loop."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(work())
            status = 0
        finally:
            os._exit(status)
    return pid
