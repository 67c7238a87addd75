"""Every method raises Closed before open and after close. Close is clean and idempotent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest

from dayjob import Broker, BrokerConfig, Closed, Enqueued, Job, Limit, NewJob, Recurring, Settlement
from dayjob.broker.worker_registry import Beat
from dayjob.engines.base import Progress
from tests.support.arrange import OpenBroker, claim_one, running
from tests.support.observe import every_job
from tests.support.registered_workers import MEMBER
from tests.support.waiting import LONG, WatchedClock, turns, with_timeout

Call = Callable[[Broker, Job], Awaitable[object]]

CALLS: dict[str, Call] = {
    "enqueue": lambda broker, claim: broker.enqueue("q"),
    "enqueue_job": lambda broker, claim: broker.enqueue_job(NewJob("q")),
    "enqueue_many": lambda broker, claim: broker.enqueue_many([NewJob("q")]),
    "limits": lambda broker, claim: broker.limits(),
    "set_limit": lambda broker, claim: broker.set_limit("api", Limit(running=1)),
    "remove_limit": lambda broker, claim: broker.remove_limit("api"),
    "declare_limits": lambda broker, claim: broker.declare_limits("app", [Limit("api", running=1)]),
    "claim": lambda broker, claim: broker.claim("q"),
    "claim_any": lambda broker, claim: broker.claim_any(),
    "ack": lambda broker, claim: broker.ack(claim),
    "nack": lambda broker, claim: broker.nack(claim, "x"),
    "dead_letter": lambda broker, claim: broker.dead_letter(claim, "x"),
    "release": lambda broker, claim: broker.release(claim),
    "snooze": lambda broker, claim: broker.snooze(claim, 1),
    "mark_cancelled": lambda broker, claim: broker.mark_cancelled(claim),
    "renew": lambda broker, claim: broker.renew(claim),
    "renew_many": lambda broker, claim: broker.renew_many([claim]),
    "record_progress": lambda broker, claim: broker.record_progress(
        [Progress(claim.key, claim.claim, 0.5, "half")]
    ),
    "settle_many": lambda broker, claim: broker.settle_many([Settlement.ack(claim)]),
    "cancel": lambda broker, claim: broker.cancel(claim.id),
    "cancel_many": lambda broker, claim: broker.cancel_many([claim.id]),
    "wait": lambda broker, claim: broker.wait(claim.id, 0),
    "get": lambda broker, claim: broker.get(claim.id),
    "jobs": lambda broker, claim: broker.jobs(),
    "dead_jobs": lambda broker, claim: broker.dead_jobs(),
    "latest_dead": lambda broker, claim: broker.latest_dead(),
    "requeue": lambda broker, claim: broker.requeue(claim.id),
    "requeue_dead": lambda broker, claim: broker.requeue_dead("q"),
    "purge_many": lambda broker, claim: broker.purge_many([claim.id]),
    "requeue_many": lambda broker, claim: broker.requeue_many([claim.id]),
    "purge_dead": lambda broker, claim: broker.purge_dead(),
    "reschedule": lambda broker, claim: broker.reschedule(claim.id, priority=1),
    "rerun": lambda broker, claim: broker.rerun(claim.id),
    "stats": lambda broker, claim: broker.stats("q"),
    "all_stats": lambda broker, claim: broker.all_stats(),
    "queues": lambda broker, claim: broker.queues(),
    "kv_get": lambda broker, claim: broker.kv_get(b"k"),
    "kv_put": lambda broker, claim: broker.kv_put(b"k", b"v"),
    "kv_delete": lambda broker, claim: broker.kv_delete(b"k"),
    "pause": lambda broker, claim: broker.pause("q"),
    "resume": lambda broker, claim: broker.resume("q"),
    "paused": lambda broker, claim: broker.paused(),
    "release_undelivered": lambda broker, claim: broker.release_undelivered(),
    "promote": lambda broker, claim: broker.promote(),
    "reap": lambda broker, claim: broker.reap(),
    "sweep": lambda broker, claim: broker.sweep(),
    "reclaim": lambda broker, claim: broker.reclaim(),
    "reclaim_from": lambda broker, claim: broker.reclaim_from(["w"]),
    "recur": lambda broker, claim: broker.recur(),
    "sample": lambda broker, claim: broker.sample(),
    "history": lambda broker, claim: broker.history(),
    "first_due": lambda broker, claim: broker.first_due({}),
    "lead": lambda broker, claim: broker.lead(),
    "schedule": lambda broker, claim: broker.schedule(Recurring("s", every=60)),
    "declare": lambda broker, claim: broker.declare("app", [Recurring("s", every=60)]),
    "unschedule": lambda broker, claim: broker.unschedule("s"),
    "schedules": lambda broker, claim: broker.schedules(),
    "trigger": lambda broker, claim: broker.trigger("s"),
    "pause_schedule": lambda broker, claim: broker.pause_schedule("s"),
    "resume_schedule": lambda broker, claim: broker.resume_schedule("s"),
    "workers": lambda broker, claim: broker.workers(),
    "register": lambda broker, claim: broker.register(MEMBER),
    "beat": lambda broker, claim: broker.beat(MEMBER, 1),
    "store_beats": lambda broker, claim: broker.store_beats([Beat("w", b"old", b"new")]),
    "deregister": lambda broker, claim: broker.deregister(MEMBER),
    "diagnose": lambda broker, claim: broker.diagnose(),
    "explain": lambda broker, claim: broker.explain(claim.id),
    "sweep_done": lambda broker, claim: broker.sweep_done(0),
    "sweep_dead": lambda broker, claim: broker.sweep_dead(0),
    "next_due": lambda broker, claim: broker.next_due(),
    "check_cancels": lambda broker, claim: broker.check_cancels(),
}


def test_the_list_of_calls_covers_every_method() -> None:
    public = {
        name
        for name, member in inspect.getmembers(Broker, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in ("open", "close", "stop_duties")
    }
    assert public == set(CALLS)


async def outcomes(broker: Broker, claim: Job) -> dict[str, object]:
    """Return the result of each call, or the type of its error."""
    found: dict[str, object] = {}
    for name, call in CALLS.items():
        try:
            found[name] = await with_timeout(call(broker, claim))
        except Exception as error:
            found[name] = type(error)
    return found


async def test_every_method_raises_after_close(broker: Broker) -> None:
    claim = await running(broker)
    await broker.close()
    assert await outcomes(broker, claim) == dict.fromkeys(CALLS, Closed)


async def test_every_method_raises_before_open(broker: Broker, url: str, clock: WatchedClock) -> None:
    claim = await running(broker)
    unopened = Broker(url, config=BrokerConfig(duties=False), clock=clock)
    assert await outcomes(unopened, claim) == dict.fromkeys(CALLS, Closed)
    await unopened.close()


async def test_open_and_close_may_be_repeated(url: str, clock: WatchedClock) -> None:
    broker = Broker(url, config=BrokerConfig(duties=False), clock=clock)
    await broker.open()
    await broker.open()
    await broker.enqueue("q")
    await broker.close()
    await broker.close()


async def test_a_with_block_opens_and_closes(url: str, clock: WatchedClock) -> None:
    async with Broker(url, config=BrokerConfig(duties=False), clock=clock) as broker:
        await broker.enqueue("q")
    with pytest.raises(Closed):
        await broker.enqueue("q")


async def test_close_releases_no_claims(open_broker: OpenBroker) -> None:
    first, second = await open_broker(), await open_broker()
    claim = await running(first)
    await first.close()
    assert await second.claim("q") == []
    await second.renew(claim)
    await second.ack(claim)


async def test_close_wakes_waiting_calls(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("other")
    waiting: list[asyncio.Task[object]] = [
        asyncio.create_task(broker.claim("q", wait=LONG)),
        asyncio.create_task(broker.wait(enqueued.id, LONG)),
    ]
    await clock.until_waiting(2)
    await with_timeout(broker.close())
    for task in waiting:
        with pytest.raises(Closed):
            await with_timeout(task)


@pytest.mark.parametrize("turn", range(5))
async def test_close_finishes_calls_under_way(open_broker: OpenBroker, turn: int) -> None:
    """A call that was accepted before the close returns, and its effect is stored."""
    broker, other = await open_broker(), await open_broker()
    calls: list[asyncio.Task[Enqueued]] = []
    for _ in range(5):
        calls += [asyncio.create_task(broker.enqueue("q")) for _ in range(10)]
        await turns(turn)
    await with_timeout(broker.close())
    answers = await with_timeout(asyncio.gather(*calls, return_exceptions=True))
    accepted = {answer.id for answer in answers if not isinstance(answer, BaseException)}
    assert all(isinstance(answer, Closed) for answer in answers if isinstance(answer, BaseException))
    assert {job.id for job in await every_job(other)} == accepted
    assert turn == 0 or len(accepted) == 50


async def test_close_answers_calls_whose_batch_was_not_sent_yet(broker: Broker) -> None:
    """Claims of a full batch are sent one by one, so the later ones still wait when the close begins."""
    names = [f"q{number}" for number in range(6)]
    await broker.enqueue_many([NewJob(name) for name in names])
    calls = [asyncio.create_task(broker.claim(name, limit=10_000)) for name in names]
    await turns(2)
    await with_timeout(broker.close())
    assert [len(jobs) for jobs in await with_timeout(asyncio.gather(*calls))] == [1] * 6


async def test_closing_one_broker_leaves_others_open(open_broker: OpenBroker) -> None:
    first, second = await open_broker(), await open_broker()
    await first.close()
    await second.enqueue("q")
    await second.ack(await claim_one(second))


async def test_a_broker_belongs_to_the_loop_that_opened_it(broker: Broker) -> None:
    def elsewhere() -> None:
        with pytest.raises(Closed, match="event loop"):
            asyncio.run(broker.enqueue("q"))

    await asyncio.to_thread(elsewhere)
    await broker.enqueue("q")
