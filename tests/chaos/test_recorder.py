"""The record of real brokers: random programs on the reference are clean, and broken engines are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dayjob import Broker, BrokerConfig, Enqueued, Job, LeaseLost, NewJob, QueueConfig, Retention, Retry
from dayjob.model.job import id_text
from dayjob.runtime.ids import new_key
from dayjob.testing import ManualClock
from tests.chaos.final_state import final_state, recorded_keys
from tests.chaos.history import History
from tests.chaos.record import Closed, Opened, Record, Setup, write_final
from tests.chaos.recorder import Recorder
from tests.chaos.rules import check
from tests.chaos.seeded import Choices

KEPT, BRIEF = "kept", "brief"
CONFIG = BrokerConfig(
    default=QueueConfig(lease=5, retry=Retry.fixed(attempts=3, delay=0)),
    queues={BRIEF: QueueConfig(retention=Retention())},
    retention=Retention(done=10**6, dead=10**6, cancelled=10**6),
    duties=False,
)


@asynccontextmanager
async def recorded(folder: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    """Record a broker during the block, and write the final state after it."""
    record = Record(folder, "test")
    record.write(Opened(pid=1, role="all"))
    record.write(Setup(kept=[KEPT], ordered=[KEPT]))
    with Recorder(record).installed():
        async with Broker("memory://", config=CONFIG, clock=clock) as broker:
            yield broker
            write_final(folder, await final_state(broker, recorded_keys(folder), {}))
    record.write(Closed())
    record.close()


class Program:
    """Random calls of one client, in order, so that the checker accepts no other state."""

    def __init__(self, broker: Broker, clock: ManualClock, choices: Choices) -> None:
        self._broker = broker
        self._clock = clock
        self._choices = choices
        self._claimed: list[Job] = []
        self._ids: list[str] = []
        self._given: list[str] = []
        self._acks = 0

    async def step(self) -> None:
        broker, choices = self._broker, self._choices
        match choices.number(10):
            case 0 | 1 | 2:
                await self._enqueue()
            case 3 | 4:
                self._claimed += await broker.claim([KEPT, BRIEF], limit=1 + choices.number(2))
            case 5 | 6 if self._claimed:
                await self._settle(choices.one(self._claimed))
            case 7 if self._ids:
                await choices.one([broker.cancel, broker.requeue])(choices.one(self._ids))
            case 8:
                self._clock.advance(choices.between(0, 6))
                await broker.reap()
                await broker.promote()
            case _ if self._claimed:
                await broker.renew(choices.one(self._claimed))

    async def _enqueue(self) -> None:
        choices = self._choices
        options: dict[str, Any] = choices.one(
            [
                {"priority": choices.number(3)},
                {"dedup_key": "k", "dedup_until": choices.one(["claimed", "settled"])},
                {"kv": {b"put %d" % len(self._ids): b""}},
                {"delay": 1},
                {"expires": 1},
                {"id": self._id()},
                {},
            ]
        )
        jobs = [NewJob(choices.one([KEPT, BRIEF]), **options)]
        if not options:
            jobs.append(NewJob(KEPT))
        self._ids += [each.id for each in await self._broker.enqueue_many(jobs)]

    def _id(self) -> str:
        """Return an id that was given before, or a new one."""
        if not self._given or self._choices.chance(0.5):
            self._given.append(id_text(new_key()))
        return self._choices.one(self._given)

    async def _settle(self, job: Job) -> None:
        broker = self._broker
        match self._choices.number(5):
            case 0 | 1:
                self._acks += 1
                await broker.ack(job, enqueue=[NewJob(KEPT)], kv={b"ack %d" % self._acks: b""})
            case 2:
                await broker.nack(job, "failed")
            case 3:
                await broker.release(job)
            case _:
                await broker.dead_letter(job, "hopeless")


async def run(folder: Path, seed: int, steps: int) -> None:
    clock, choices = ManualClock(), Choices(seed)
    async with recorded(folder, clock) as broker:
        program = Program(broker, clock, choices)
        for _ in range(steps):
            with suppress(LeaseLost):
                await program.step()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(0, 60))
def test_a_random_program_on_the_reference_has_no_finding(seed: int, steps: int) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder), seed, steps))
        assert check(History.load(Path(folder))) == []


async def test_an_engine_that_forgets_a_job_is_found(tmp_path: Path) -> None:
    async with recorded(tmp_path, ManualClock()) as broker:
        engine: Any = broker._engine
        insert, forgotten = engine.insert, Enqueued(id_text(new_key()), True)

        async def forget(jobs: Sequence[Any], token: Any = None) -> list[Enqueued]:
            replies: list[Enqueued] = await insert(jobs[1:], token)
            return [forgotten, *replies]

        engine.insert = forget
        await broker.enqueue_many([NewJob(KEPT, id=forgotten.id), NewJob(KEPT)])
    found = check(History.load(tmp_path))
    assert [(violation.rule, violation.id) for violation in found] == [
        ("accepted_jobs_are_accounted_for", forgotten.id)
    ]


async def test_an_engine_that_settles_any_claim_is_found(tmp_path: Path) -> None:
    clock = ManualClock()
    async with recorded(tmp_path, clock) as broker:
        engine: Any = broker._engine
        id = (await broker.enqueue(KEPT)).id
        [stale] = await broker.claim(KEPT)
        clock.advance(6)
        assert await broker.reap() == 1
        [current] = await broker.claim(KEPT)
        settle = engine.settle

        async def without_fence(ops: Sequence[Any], token: Any = None) -> Any:
            for op in ops:
                op.claim = current.claim
            return await settle(ops, token)

        engine.settle = without_fence
        await broker.ack(stale)
    assert ("stale_claims_settle_nothing", id) in {
        (violation.rule, violation.id) for violation in check(History.load(tmp_path))
    }
