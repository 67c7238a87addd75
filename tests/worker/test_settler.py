"""The worker's settler: batches, retries through outages, refused outcomes, locked follow-up jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from dayjob import Closed, EngineFenced, EngineUnavailable, Job, JobState, NewJob, Settlement, SettleResult
from dayjob.engines.base import BATCH, BATCH_BYTES, Contended
from dayjob.model.lifecycle import Transition
from dayjob.runtime.ids import new_key
from dayjob.testing import ManualClock
from dayjob.worker.settler import Batch, Settler
from tests.support.bound import BOUND
from tests.support.staging import Gate, turns


class FakeRun:
    """A run with its job."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.job = Job(
            key=new_key(), queue="q", task="", payload=b"", headers={}, tenant=None, priority=0,
            state=JobState.RUNNING, attempts=1, max_attempts=3, epoch=1, enqueued_us=0, run_us=0,
        )  # fmt: skip


class FakeBroker:
    """Records the batches. The next calls fail with ``failures``; ``refuse`` finds an invalid settlement."""

    def __init__(self) -> None:
        self.batches: list[list[Settlement]] = []
        self.failures: deque[Exception] = deque()
        self.gate: Gate | None = None
        self.refused: set[bytes] = set()
        self.locked: set[bytes] = set()

    async def settle_many(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        self.batches.append(list(settlements))
        if self.gate is not None:
            await self.gate.passed()
        if self.failures:
            raise self.failures.popleft()
        if any(settlement.job.key in self.locked for settlement in settlements):
            raise Contended("locked by another client")
        for settlement in settlements:
            if settlement.job.key in self.refused and settlement.transition is Transition.ACK:
                raise ValueError("an invalid follow-up job")
        return [SettleResult(settlement.job.key, True, JobState.DONE) for settlement in settlements]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = FakeBroker()
        self.settled: list[tuple[int, Transition, bool]] = []
        self.shut_out: list[Exception] = []
        broker: Any = self.broker
        self.settler = Settler(broker, self.clock, self._settled, self.shut_out.append)

    def _settled(self, batch: Batch, results: Sequence[SettleResult]) -> None:
        for (run, settlement), result in zip(batch, results, strict=True):
            fake: Any = run
            self.settled.append((fake.number, settlement.transition, result.applied))

    def put(self, number: int, **outcome: Any) -> Job:
        fake = FakeRun(number)
        run: Any = fake
        self.settler.put(run, Settlement.ack(fake.job, **outcome))
        return fake.job

    async def flush(self) -> None:
        async with asyncio.timeout(BOUND):
            await self.settler.flush()

    @property
    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.settled]


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_outcomes_that_arrive_during_a_commit_form_the_next_batch(scene: Scene) -> None:
    scene.broker.gate = Gate()
    scene.put(0)
    await scene.broker.gate.reached()
    for number in range(1, 100):
        scene.put(number)
    scene.broker.gate.open()
    await scene.flush()
    assert scene.broker.sizes == [1, 99]
    assert scene.numbers == list(range(100))


async def test_a_batch_has_no_more_outcomes_than_the_limit(scene: Scene) -> None:
    for number in range(BATCH + 1):
        scene.put(number)
    await scene.flush()
    assert scene.broker.sizes == [BATCH, 1]


async def test_large_results_go_out_in_batches_of_at_most_eight_mebibytes(scene: Scene) -> None:
    for number in range(20):
        scene.put(number, result=bytes(1_000_000))
    await scene.flush()
    assert scene.broker.sizes == [8, 8, 4]
    assert scene.numbers == list(range(20))


async def test_a_huge_result_goes_alone_and_the_order_is_kept(scene: Scene) -> None:
    for number in range(5):
        scene.put(number, result=bytes(BATCH_BYTES + 1) if number == 2 else b"")
    await scene.flush()
    assert scene.broker.sizes == [2, 1, 2]
    assert scene.numbers == list(range(5))


async def test_an_outage_delays_outcomes_with_growing_pauses(scene: Scene) -> None:
    scene.broker.failures.extend([EngineUnavailable("no reply")] * 3)
    scene.put(1)
    await turns()
    for tries, pause in ((1, 0.05), (2, 0.1), (3, 0.2)):
        assert len(scene.broker.batches) == tries
        scene.clock.advance(pause)
        await turns()
    await scene.flush()
    assert len(scene.broker.batches) == 4
    assert scene.settled == [(1, Transition.ACK, True)]


async def test_an_outcome_that_is_refused_fails_its_own_run_only(scene: Scene) -> None:
    jobs = [scene.put(number) for number in range(3)]
    scene.broker.refused.add(jobs[1].key)
    await scene.flush()
    assert sorted(scene.settled) == [
        (0, Transition.ACK, True), (1, Transition.NACK, True), (2, Transition.ACK, True),
    ]  # fmt: skip


async def test_a_failure_that_is_refused_too_is_left_to_the_lease(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.broker.failures.extend([ValueError("refused"), ValueError("refused again")])
    scene.put(1)
    await scene.flush()
    assert scene.settled == [(1, Transition.NACK, False)]
    assert "its claim ends with its lease" in caplog.text


async def test_an_outcome_with_a_locked_follow_up_waits_and_delays_no_other(scene: Scene) -> None:
    locked = scene.put(0, enqueue=[NewJob("q", dedup_key="d")])
    scene.broker.locked.add(locked.key)
    for number in range(1, 4):
        scene.put(number)
    await turns()
    assert scene.numbers == [1, 2, 3]
    scene.broker.locked.clear()
    await scene.flush()
    assert scene.numbers == [1, 2, 3, 0]


async def test_a_locked_outcome_of_a_batch_is_split_from_it(scene: Scene) -> None:
    jobs = [scene.put(number) for number in range(3)]
    scene.broker.locked.add(jobs[1].key)
    await turns()
    assert scene.numbers == [0, 2]
    scene.broker.locked.clear()
    await scene.flush()
    assert scene.numbers == [0, 2, 1]


@pytest.mark.parametrize("error", [EngineFenced("taken over"), Closed("closed")])
async def test_a_storage_that_is_lost_for_good_shuts_the_worker_out(scene: Scene, error: Exception) -> None:
    scene.broker.failures.append(error)
    scene.put(1)
    await scene.flush()
    assert scene.shut_out == [error]
    assert scene.settled == []


async def test_an_abort_ends_the_retries(scene: Scene) -> None:
    scene.broker.failures.extend([EngineUnavailable("no reply")] * 100)
    scene.put(1)
    scene.put(2, enqueue=[NewJob("q", dedup_key="d")])
    await turns()
    scene.settler.abort()
    await scene.flush()
    assert (scene.settled, scene.shut_out) == ([], [])
