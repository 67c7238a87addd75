"""Several processes on one storage, for engines with ``multi_process``."""

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
from tests.support.waiting import LONG, WatchedClock, with_timeout

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


class OtherBroker:
    """A handle to another process; see ``other_process``."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def reply(self) -> Any:
        assert self._process.stdout is not None
        line = await with_timeout(self._process.stdout.readline())
        assert line, "the other process ended"
        return json.loads(line)

    def send(self, verb: str, *arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, *arguments]).encode() + b"\n")

    async def call(self, verb: str, *arguments: object) -> Any:
        self.send(verb, *arguments)
        return await self.reply()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await with_timeout(self._process.communicate())


Start = Callable[[int], Awaitable[list[OtherBroker]]]


@pytest.fixture
async def start(broker: Broker, url: str) -> AsyncIterator[Start]:
    """Start other processes on the test's storage concurrently, and wait until they are open."""
    if not broker.capabilities.multi_process:
        pytest.skip("the engine allows one process only")
    started: list[OtherBroker] = []

    async def start_some(count: int) -> list[OtherBroker]:
        command = (sys.executable, "-m", "tests.conformance.other_process", url)
        some = [
            OtherBroker(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=ROOT))
            for _ in range(count)
        ]
        started.extend(some)
        assert [await other.reply() for other in some] == ["open"] * count
        return some

    yield start_some
    for other in started:
        await other.kill()


async def test_of_enqueues_with_one_key_in_several_processes_one_wins(broker: Broker, start: Start) -> None:
    others = await start(3)
    keys = [f"k{number % 10}" for number in range(50)]
    for other in others:
        other.send("enqueue", "q", keys)
    created = Counter[str]()
    for other in others:
        for key, made in zip(keys, await other.reply(), strict=True):
            created[key] += made
    assert created == {f"k{number}": 1 for number in range(10)}
    assert (await broker.stats("q")).pending == 10


async def test_each_job_is_claimed_by_one_process(broker: Broker, start: Start) -> None:
    others = await start(3)
    enqueued = await broker.enqueue_many([NewJob("q") for _ in range(200)])
    for other in others:
        other.send("claim_all", "q")
    claimed = [id for other in others for id in await other.reply()]
    assert sorted(claimed) == [one.id for one in enqueued]
    assert (await broker.stats("q")).done == 200


async def test_a_waiting_claim_is_woken_from_another_process(
    broker: Broker, start: Start, clock: WatchedClock
) -> None:
    [other] = await start(1)
    waiting = asyncio.create_task(broker.claim("q", wait=LONG))
    await clock.until_waiting()
    id = await other.call("enqueue_plain", "q")
    assert [job.id for job in await with_timeout(waiting)] == [id]


async def test_a_wait_ends_with_the_ack_of_another_process(
    broker: Broker, start: Start, clock: WatchedClock
) -> None:
    [other] = await start(1)
    enqueued = await broker.enqueue("q")
    assert await other.call("claim", "q", 1) == [enqueued.id]
    waiting = asyncio.create_task(broker.wait(enqueued.id, LONG))
    await clock.until_waiting()
    await other.call("ack")
    assert (await with_timeout(waiting)).status == "completed"


async def test_a_cancel_reaches_the_claim_of_another_process(broker: Broker, start: Start) -> None:
    [other] = await start(1)
    enqueued = await broker.enqueue("q")
    await other.call("claim", "q", 1)
    other.send("wait_for_cancel")
    assert await broker.cancel(enqueued.id) == "requested"
    assert await other.reply() is True
    mine = await running(broker, "r")
    assert await other.call("cancel", mine.id) == "requested"
    await with_timeout(mine.cancel_token.wait())


async def test_a_pause_holds_for_every_process(broker: Broker, start: Start) -> None:
    [other] = await start(1)
    await broker.enqueue("q")
    await other.call("pause", "q")
    assert await broker.claim("q") == []
    await broker.resume("q")
    assert len(await other.call("claim", "q", 1)) == 1


async def test_the_claims_of_a_killed_process_are_reaped(
    broker: Broker, start: Start, clock: WatchedClock
) -> None:
    """At once with ``knows_orphans``; on every engine when the lease expires."""
    [other] = await start(1)
    enqueued = await broker.enqueue("q")
    mine = await running(broker, "r")
    await other.call("claim", "q", 1)
    assert await broker.reap() == 0, "a live process keeps its claims"
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
