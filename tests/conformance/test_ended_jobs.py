"""Jobs that end without a worker are in the reply of the verb, in the log, and reported to ``on_ended``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, EndedJob, JobState, NewJob
from dayjob.duties.ended import MAX_LOGGED
from dayjob.engines.base import Engine
from dayjob.model.job import LEASE_EXPIRED, WORKER_GONE
from dayjob.model.lifecycle import EXPIRED
from tests.support.arrange import KEEP_ALL, claim_one, quiet, record, running
from tests.support.engines import EngineUnderTest
from tests.support.observe import ids
from tests.support.waiting import WatchedClock, until

Ended = tuple[str, str, str, JobState, JobState, int, str]


def fields(ended: Sequence[EndedJob]) -> list[Ended]:
    return sorted(
        (job.id, job.queue, job.task, job.old_state, job.state, job.attempts, job.error) for job in ended
    )


class Reporting:
    """A broker, and the jobs that it has reported."""

    def __init__(self, url: str, config: BrokerConfig, clock: WatchedClock) -> None:
        self.ended: list[EndedJob] = []
        self.broker = Broker(url, config=config, clock=clock, on_ended=self.ended.extend)


@pytest.fixture
async def open_reporting(url: str, clock: WatchedClock) -> AsyncIterator[OpenReporting]:
    async with AsyncExitStack() as stack:

        async def open_one(config: BrokerConfig) -> Reporting:
            reporting = Reporting(url, config, clock)
            await stack.enter_async_context(reporting.broker)
            return reporting

        yield open_one


OpenReporting = Callable[[BrokerConfig], Awaitable[Reporting]]

RUNNING, PENDING, SCHEDULED = JobState.RUNNING, JobState.PENDING, JobState.SCHEDULED
DEAD, CANCELLED = JobState.DEAD, JobState.CANCELLED


# The replies of the verbs.


async def test_reap_returns_the_jobs_of_the_claims_that_it_ended(
    broker: Broker, raw_engine: Engine, clock: WatchedClock
) -> None:
    again = await running(broker, "first", task="send ☃")
    last = await running(broker, "second", task="t", max_attempts=1)
    assert await raw_engine.reap(10, None) == []
    clock.advance(30)
    ended = await raw_engine.reap(10, None)
    assert fields(ended) == [
        (again.id, "first", "send ☃", RUNNING, PENDING, 1, LEASE_EXPIRED),
        (last.id, "second", "t", RUNNING, DEAD, 1, LEASE_EXPIRED),
    ]


async def test_reap_ends_only_the_leases_that_had_expired_at_the_given_time(
    broker: Broker, raw_engine: Engine, clock: WatchedClock
) -> None:
    job = await running(broker)
    clock.advance(29)
    before = clock.now()
    clock.advance(60)
    for expired_by in (0, 1, before):
        assert await raw_engine.reap(10, expired_by) == []
    clock.advance(30)
    [ended] = await raw_engine.reap(10, clock.now() - 60_000_000)
    assert ended.id == job.id
    stored = await broker.get(job.id)
    assert stored is not None
    assert stored.errors[-1].at_us == clock.now()


async def test_reap_ends_no_lease_that_has_not_expired_now(
    broker: Broker, raw_engine: Engine, clock: WatchedClock
) -> None:
    """The clock may have been set back after the duty has read it."""
    await running(broker)
    assert await raw_engine.reap(10, clock.now() + 60_000_000) == []


async def test_reclaim_returns_the_jobs_of_the_claims_that_it_ended(
    broker: Broker, raw_engine: Engine
) -> None:
    again = await running(broker, "first", task="t", max_attempts=2)
    last = await running(broker, "second", max_attempts=1)
    ended = await raw_engine.reclaim(["w"], 10)
    assert fields(ended) == [
        (again.id, "first", "t", RUNNING, PENDING, 1, WORKER_GONE),
        (last.id, "second", "", RUNNING, DEAD, 1, WORKER_GONE),
    ]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
async def test_promote_returns_the_jobs_that_expired(
    open_reporting: OpenReporting, clock: WatchedClock, keep: bool
) -> None:
    broker = (await open_reporting(quiet(retention=KEEP_ALL) if keep else quiet())).broker
    pending = await broker.enqueue("first", task="t", expires=5)
    scheduled = await broker.enqueue("second", delay=60, expires=5)
    await broker.enqueue("third", delay=5)
    clock.advance(5)
    due, ended = await broker._engine.promote(10)
    assert due == 1
    assert fields(ended) == [
        (pending.id, "first", "t", PENDING, CANCELLED, 0, EXPIRED),
        (scheduled.id, "second", "", SCHEDULED, CANCELLED, 0, EXPIRED),
    ]


# Reports.


async def test_the_duties_report_each_job_once_in_one_process(
    open_reporting: OpenReporting, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(reap_interval=1, promote_interval=1)
    both = [await open_reporting(config), await open_reporting(config)]
    broker = both[0].broker
    lost = await running(broker, "q", task="lost")
    dead = await running(broker, "q", task="dead", max_attempts=1)
    expired = await broker.enqueue("late", task="expired", expires=10)

    async def reported() -> bool:
        clock.advance(1)
        await clock.until_duties_wait()
        return sum(len(each.ended) for each in both) >= 3

    with caplog.at_level("INFO", "dayjob.duties"):
        await until(reported)
        for _ in range(5):
            await reported()
    assert fields(both[0].ended + both[1].ended) == sorted(
        [
            (lost.id, "q", "lost", RUNNING, PENDING, 1, LEASE_EXPIRED),
            (dead.id, "q", "dead", RUNNING, DEAD, 1, LEASE_EXPIRED),
            (expired.id, "late", "expired", PENDING, CANCELLED, 0, EXPIRED),
        ]
    )
    for id, task, level in (
        (lost.id, "lost", "WARNING"),
        (dead.id, "dead", "ERROR"),
        (expired.id, "expired", "INFO"),
    ):
        [line] = [entry for entry in caplog.records if id in entry.message]
        assert line.levelname == level
        assert f"of task '{task}' on queue" in line.message


async def test_a_mass_of_ended_jobs_is_summed_up_in_the_log(
    open_reporting: OpenReporting, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    reporting = await open_reporting(quiet())
    number = 10 * MAX_LOGGED
    await reporting.broker.enqueue_many([NewJob("q", max_attempts=1) for _ in range(number)])
    claimed = await reporting.broker.claim("q", limit=number)
    clock.advance(30)
    with caplog.at_level("INFO", "dayjob.duties"):
        assert await reporting.broker.reap() == number
    assert {job.id for job in reporting.ended} == {*ids(claimed)}
    lines = [entry.message for entry in caplog.records if entry.name == "dayjob.duties"]
    assert len(lines) == MAX_LOGGED + 1
    meaning = "the worker process died or was cut off while it ran the job"
    assert lines[-1] == f"{number - MAX_LOGGED} further jobs: is dead: lease expired: {meaning}"


async def test_a_report_that_fails_does_not_stop_the_duty(
    url: str, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(ended: Sequence[EndedJob]) -> None:
        raise ValueError("no pager")

    async with Broker(url, config=quiet(), clock=clock, on_ended=fail) as broker:
        await running(broker)
        clock.advance(30)
        assert await broker.reap() == 1
        await claim_one(broker)
    assert "no pager" in caplog.text


async def test_a_settled_job_is_not_reported(open_reporting: OpenReporting) -> None:
    reporting = await open_reporting(quiet())
    broker = reporting.broker
    await broker.dead_letter(await running(broker), "no good")
    await broker.release(await running(broker))
    await broker.ack(await claim_one(broker))
    await broker.promote()
    await broker.reap()
    assert reporting.ended == []


async def test_a_quarantined_job_is_reported(
    open_reporting: OpenReporting, engine: EngineUnderTest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporting = await open_reporting(quiet())
    broker = reporting.broker
    if not broker.capabilities.persistent:
        pytest.skip("the engine stores no encoded records")
    for corrupt in engine.corrupt.values():
        reporting.ended.clear()
        enqueued = await broker.enqueue("q", b"data", task="t", tenant="acme", headers={"h": "v"})
        corrupt(tmp_path, enqueued.id)
        assert await broker.claim("q") == []
        [ended] = reporting.ended
        assert (ended.id, ended.queue, ended.old_state, ended.state) == (enqueued.id, "q", PENDING, DEAD)
        assert ended.error.startswith("corrupt record: ")
        assert ended.task in ("t", "")
        stored = await record(broker, enqueued.id)
        assert (stored.attempts, stored.last_error) == (ended.attempts, ended.error)
        assert f"Job {enqueued.id}" in caplog.text
