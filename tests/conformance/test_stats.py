"""Stats: the counters equal the listing after every transition, and done counts every success."""

from __future__ import annotations

import asyncio

from dayjob import Broker, NewJob, QueueStats, Settlement
from tests.support.arrange import (
    KEEP_ALL,
    OpenBroker,
    cancelled,
    claim_one,
    dead,
    done,
    quiet,
    running,
)
from tests.support.observe import check_counters
from tests.support.waiting import WatchedClock


async def test_the_counters_follow_every_transition(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))

    async def expect(**counters: int) -> None:
        assert await broker.stats("q") == QueueStats(**counters)
        await check_counters(broker)

    first = await broker.enqueue("q", max_attempts=2)
    await expect(pending=1)
    second = await broker.enqueue("q", delay=5, max_attempts=1)
    await expect(pending=1, scheduled=1)
    claim = await claim_one(broker)
    await expect(running=1, scheduled=1)
    await broker.nack(claim, "again", delay=9)
    await expect(scheduled=2)
    clock.advance(5)
    await broker.promote()
    await expect(pending=1, scheduled=1)
    await broker.release(await claim_one(broker))
    await expect(pending=1, scheduled=1)
    await broker.snooze(await claim_one(broker), 9)
    await expect(scheduled=2)
    clock.advance(9)
    await broker.promote()
    await expect(pending=2)
    assert len(await broker.claim("q", limit=2)) == 2
    await expect(running=2)
    await broker.cancel(first.id)
    await expect(running=2)
    clock.advance(30)
    await broker.reap()
    await expect(pending=1, dead=1)  # The first crash on a last attempt is not final: the job is a suspect.
    await claim_one(broker)
    clock.advance(30)
    await broker.reap()
    await expect(dead=2)
    await broker.requeue(first.id)
    await expect(pending=1, dead=1)
    await broker.requeue_dead("q")
    await expect(pending=2)
    await broker.ack(await claim_one(broker))
    await expect(pending=1, done=1)
    await broker.cancel(second.id)
    await expect(done=1, cancelled=1)
    await broker.rerun(first.id)
    await expect(pending=1, done=1, cancelled=1)
    await broker.mark_cancelled(await claim_one(broker))
    await expect(done=1, cancelled=2)
    await broker.enqueue("q", expires=1)
    clock.advance(1)
    await broker.promote()
    await expect(done=1, cancelled=3)
    await dead(broker)
    await expect(done=1, cancelled=3, dead=1)
    await broker.purge_dead()
    await expect(done=1, cancelled=3)
    clock.advance(2 * 86_400)
    await broker.sweep()
    await expect(done=1)


async def test_done_counts_successes_that_are_not_kept(broker: Broker) -> None:
    for _ in range(3):
        await done(broker)
    await broker.enqueue_many([NewJob("q") for _ in range(4)])
    await broker.settle_many([Settlement.ack(claim) for claim in await broker.claim("q", limit=4)])
    assert await broker.stats("q") == QueueStats(done=7)


async def test_done_is_unchanged_by_a_sweep(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    await done(broker)
    assert await broker.sweep_done(0) == 1
    await done(broker)
    clock.advance(2 * 86_400)
    assert await broker.sweep() == 1
    assert await broker.stats("q") == QueueStats(done=2)


async def test_stats_of_an_unknown_queue_are_zero_and_do_not_create_it(broker: Broker) -> None:
    assert await broker.stats("unknown") == QueueStats()
    assert await broker.queues() == []
    assert await broker.all_stats() == {}


async def test_queues_lists_every_queue_ever_used_in_name_order(broker: Broker) -> None:
    await done(broker, "b")
    await cancelled(broker, "a")
    await broker.purge_dead()
    await broker.pause("d")
    await broker.resume("c")
    await broker.enqueue("é")
    assert await broker.queues() == ["a", "b", "c", "d", "é"]
    stats = await broker.all_stats()
    assert list(stats) == ["a", "b", "c", "d", "é"]
    assert stats["b"] == QueueStats(done=1)
    assert stats["é"] == QueueStats(pending=1)


async def test_reads_create_no_queue(broker: Broker) -> None:
    await broker.claim(["x", "y"])
    await broker.stats("x")
    await broker.jobs("x")
    await broker.requeue_dead("x")
    await broker.purge_dead("x")
    assert await broker.queues() == []


async def test_a_follow_up_creates_its_queue(broker: Broker) -> None:
    await broker.ack(await running(broker), enqueue=[NewJob("next")])
    assert await broker.queues() == ["next", "q"]


async def test_changing_returned_stats_changes_nothing(broker: Broker) -> None:
    await broker.enqueue("q")
    (await broker.stats("q")).pending = 99
    (await broker.all_stats())["q"].pending = 99
    assert (await broker.stats("q")).pending == 1


async def test_concurrent_changes_are_all_counted(broker: Broker, open_broker: OpenBroker) -> None:
    brokers = [broker, await open_broker()]

    async def live(number: int) -> None:
        mine = brokers[number % 2]
        queue = f"q{number % 3}"
        await mine.enqueue(queue, max_attempts=2)
        for claim in await mine.claim(queue):
            match number % 5:
                case 0:
                    await mine.ack(claim)
                case 1:
                    await mine.nack(claim, "x", delay=0)
                case 2:
                    await mine.dead_letter(claim, "x")
                case 3:
                    await mine.snooze(claim, 5)
                case _:
                    await mine.cancel(claim.id)

    await asyncio.gather(*(live(number) for number in range(90)))
    await check_counters(broker)
    assert sum(stats.done for stats in (await broker.all_stats()).values()) > 0
