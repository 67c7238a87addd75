"""Several processes on one storage. For engines that allow it."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dayjob import Broker, JobState, NewJob
from tests.support.arrange import claim_one, record, running, state
from tests.support.waiting import LONG, WatchedClock, within

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


class Other:
    """A handle on another process; see ``other_process``."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def answer(self) -> Any:
        assert self._process.stdout is not None
        line = await within(self._process.stdout.readline())
        assert line, "the other process ended"
        return json.loads(line)

    def tell(self, verb: str, *arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, *arguments]).encode() + b"\n")

    async def ask(self, verb: str, *arguments: object) -> Any:
        self.tell(verb, *arguments)
        return await self.answer()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await within(self._process.communicate())


Start = Callable[[int], Awaitable[list[Other]]]


@pytest.fixture
async def start(broker: Broker, url: str) -> AsyncIterator[Start]:
    """Starts other processes on the test's storage, all at once, and waits until they are open."""
    if not broker.capabilities.multi_process:
        pytest.skip("the engine is for one process")
    started: list[Other] = []

    async def start_some(count: int) -> list[Other]:
        command = (sys.executable, "-m", "tests.conformance.other_process", url)
        some = [
            Other(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=ROOT))
            for _ in range(count)
        ]
        started.extend(some)
        assert [await other.answer() for other in some] == ["open"] * count
        return some

    yield start_some
    for other in started:
        await other.kill()


async def test_of_enqueues_in_several_processes_one_holds_the_key(broker: Broker, start: Start) -> None:
    others = await start(3)
    keys = [f"k{number % 10}" for number in range(50)]
    for other in others:
        other.tell("enqueue", "q", keys)
    created = Counter[str]()
    for other in others:
        for key, made in zip(keys, await other.answer(), strict=True):
            created[key] += made
    assert created == {f"k{number}": 1 for number in range(10)}
    assert (await broker.stats("q")).pending == 10


async def test_each_job_is_claimed_by_one_process(broker: Broker, start: Start) -> None:
    others = await start(3)
    enqueued = await broker.enqueue_many([NewJob("q") for _ in range(200)])
    for other in others:
        other.tell("claim_all", "q")
    claimed = [id for other in others for id in await other.answer()]
    assert sorted(claimed) == [one.id for one in enqueued]
    assert (await broker.stats("q")).done == 200


async def test_a_waiting_claim_is_woken_from_another_process(
    broker: Broker, start: Start, clock: WatchedClock
) -> None:
    [other] = await start(1)
    waiting = asyncio.create_task(broker.claim("q", wait=LONG))
    await clock.until_waiting()
    id = await other.ask("enqueue_plain", "q")
    assert [job.id for job in await within(waiting)] == [id]


async def test_a_wait_ends_with_the_ack_of_another_process(
    broker: Broker, start: Start, clock: WatchedClock
) -> None:
    [other] = await start(1)
    enqueued = await broker.enqueue("q")
    assert await other.ask("claim", "q", 1) == [enqueued.id]
    waiting = asyncio.create_task(broker.wait(enqueued.id, LONG))
    await clock.until_waiting()
    await other.ask("ack")
    assert (await within(waiting)).status == "completed"


async def test_a_cancel_reaches_the_claim_of_another_process(broker: Broker, start: Start) -> None:
    [other] = await start(1)
    enqueued = await broker.enqueue("q")
    await other.ask("claim", "q", 1)
    other.tell("wait_for_cancel")
    assert await broker.cancel(enqueued.id) == "requested"
    assert await other.answer() is True
    mine = await running(broker, "r")
    assert await other.ask("cancel", mine.id) == "requested"
    await within(mine.cancel_token.wait())


async def test_a_pause_holds_for_every_process(broker: Broker, start: Start) -> None:
    [other] = await start(1)
    await broker.enqueue("q")
    await other.ask("pause", "q")
    assert await broker.claim("q") == []
    await broker.resume("q")
    assert len(await other.ask("claim", "q", 1)) == 1


async def test_the_claims_of_a_killed_process_come_back(
    broker: Broker, start: Start, clock: WatchedClock
) -> None:
    """At once where the engine knows that the process is gone; everywhere when the lease is over."""
    [other] = await start(1)
    enqueued = await broker.enqueue("q")
    mine = await running(broker, "r")
    await other.ask("claim", "q", 1)
    assert await broker.reap() == 0, "a process that lives keeps its claims"
    await other.kill()
    if not broker.capabilities.knows_orphans:
        assert await broker.reap() == 0
        clock.advance(29)
        await broker.renew(mine)
        clock.advance(1)
    assert await broker.reap() == 1
    job = await record(broker, enqueued.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "lease expired")
    assert (await claim_one(broker)).attempts == 2
    assert await state(broker, mine.id) is JobState.RUNNING
