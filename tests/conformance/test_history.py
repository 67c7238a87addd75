"""The throughput history: a sample of the counters each minute, and how long jobs waited."""

from __future__ import annotations

from dayjob import Broker, NewJob, QueueStats
from dayjob.model.durations import SECOND
from tests.support.arrange import running
from tests.support.waiting import WatchedClock


def next_minute(clock: WatchedClock) -> None:
    clock.advance(60 - clock.now() / SECOND % 60)


async def test_a_sample_has_the_counters_and_the_due_time_of_the_first_job(
    broker: Broker, clock: WatchedClock
) -> None:
    next_minute(clock)
    await broker.enqueue_many([NewJob("a", priority=5), NewJob("a", priority=1), NewJob("b", delay=600)])
    enqueued = clock.now()
    clock.advance(20)
    await broker.ack(await running(broker, "c"))
    assert await broker.first_due(await broker.all_stats()) == {"a": enqueued}
    assert await broker.sample() == 40 * SECOND, "until the next minute"
    now, [sample] = await broker.history()
    assert now == clock.now()
    assert sample.at_us == enqueued
    assert sample.stats("a") == QueueStats(pending=2)
    assert sample.stats("b") == QueueStats(scheduled=1)
    assert sample.stats("c").done == 1
    assert sample.first_due == {"a": enqueued}
    assert sample.wait_seconds("a", now) == sample.wait_seconds(None, now) == 20
    assert sample.wait_seconds("b", now) == 0


async def test_a_minute_is_sampled_once_and_only_after_a_change(broker: Broker, clock: WatchedClock) -> None:
    next_minute(clock)
    await broker.enqueue("q")
    for _ in range(3):
        await broker.sample()
        await broker.enqueue("q")
    next_minute(clock)
    for _ in range(3):
        await broker.sample()
        next_minute(clock)
    _, samples = await broker.history()
    assert [sample.stats("q").pending for sample in samples] == [1, 4]


async def test_the_wait_of_a_promoted_job_starts_at_its_due_time(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue("q", delay=30)
    due = clock.now() + 30 * SECOND
    clock.advance(45)
    await broker.promote()
    assert await broker.first_due(await broker.all_stats()) == {"q": due}
