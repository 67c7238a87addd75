"""``explain``: every reason why a job is not running, as text and as data."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker, Explanation, JobState, NewJob
from dayjob.model.explanation import COUNTED_AHEAD
from tests.support.arrange import KEEP_ALL, OpenBroker, cancelled, claim_one, done, quiet, running
from tests.support.registered_workers import MEMBER
from tests.support.waiting import WatchedClock


@pytest.fixture
async def broker(open_broker: OpenBroker) -> Broker:
    """A broker that keeps all finished jobs."""
    return await open_broker(quiet(retention=KEEP_ALL))


@pytest.fixture
async def staffed(broker: Broker) -> Broker:
    """A broker with a live worker that serves the queue and has the task."""
    await broker.register(MEMBER)
    return broker


async def why(broker: Broker, id: str) -> list[tuple[str, str, dict[str, Any]]]:
    explained: Explanation = await broker.explain(id)
    assert explained.text == "\n".join(reason.text for reason in explained.reasons)
    return [(reason.code, reason.text, reason.data) for reason in explained.reasons]


async def codes(broker: Broker, id: str) -> list[str]:
    return [code for code, _, _ in await why(broker, id)]


@pytest.mark.parametrize("id", ["01a1dfca-61e5-758e-afc9-d5734a6c3589", "no id at all", "", "\0"])
async def test_the_job_does_not_exist(broker: Broker, id: str) -> None:
    explained = await broker.explain(id)
    assert (explained.id, explained.state) == (id, None)
    assert await why(broker, id) == [
        ("unknown", "There is no such job: the id is unknown, or the job finished and is no longer kept.", {})
    ]


async def test_the_job_is_the_next_of_its_queue(staffed: Broker) -> None:
    enqueued = await staffed.enqueue("q", task="t")
    explained = await staffed.explain(enqueued.id.upper())
    assert (explained.id, explained.state) == (enqueued.id, JobState.PENDING)
    text = "It is the next job of queue 'q': the next free slot of a worker claims it."
    assert await why(staffed, enqueued.id) == [("next", text, {"queue": "q"})]


async def test_the_job_is_behind_others(staffed: Broker) -> None:
    first = await staffed.enqueue("q", task="t")
    second = await staffed.enqueue("q", task="t")
    await staffed.enqueue("other", priority=1)
    await staffed.enqueue("q", priority=1, delay=60)
    text = "It is behind 1 job of queue 'q'."
    assert await why(staffed, second.id) == [("behind", text, {"ahead": 1, "more": False, "queue": "q"})]
    for _ in range(3):
        await staffed.enqueue("q", priority=1)
    assert (await why(staffed, first.id))[0][1] == "It is behind 3 jobs of queue 'q'."
    assert (await why(staffed, second.id))[0][1] == "It is behind 4 jobs of queue 'q'."


async def test_the_position_is_counted_up_to_ten_thousand(staffed: Broker) -> None:
    await staffed.enqueue_many([NewJob("q")] * (COUNTED_AHEAD - 1))
    last = await staffed.enqueue("q", task="t")
    assert (await why(staffed, last.id))[0][1] == "It is behind 9,999 jobs of queue 'q'."
    await staffed.enqueue_many([NewJob("q", priority=1)] * 2)
    text = "It is behind 10,000+ jobs of queue 'q'."
    assert await why(staffed, last.id) == [("behind", text, {"ahead": 10_000, "more": True, "queue": "q"})]


async def test_the_queue_is_paused(staffed: Broker) -> None:
    enqueued = await staffed.enqueue("q", task="t")
    await staffed.pause("q")
    text = "Queue 'q' is paused: resume it to run its jobs."
    assert await why(staffed, enqueued.id) == [("paused", text, {"queue": "q"})]
    await staffed.resume("q")
    assert await codes(staffed, enqueued.id) == ["next"]


async def test_no_live_worker_serves_the_queue(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", task="t")
    text = "No live worker serves queue 'q': start one for it."
    assert await why(broker, enqueued.id) == [("no_worker_for_queue", text, {"queue": "q", "workers": 0})]
    await broker.register(replace(MEMBER, queues=("a", "b")))
    assert (await why(broker, enqueued.id))[0][1] == f"{text} 1 live worker serves other queues."
    await broker.register(replace(MEMBER, id="all", queues=()))
    assert await codes(broker, enqueued.id) == ["next"]
    clock.advance(16)
    assert await codes(broker, enqueued.id) == ["no_worker_for_queue"], "those workers are dead by now"


async def test_no_live_worker_has_the_task(staffed: Broker) -> None:
    enqueued = await staffed.enqueue("q", task="unheard of")
    await staffed.register(replace(MEMBER, id="elsewhere", queues=("b",), tasks=("unheard of",)))
    text = (
        "No live worker of queue 'q' has the task 'unheard of': import its module where the worker's app is "
        "created, or correct its name."
    )
    assert await why(staffed, enqueued.id) == [
        ("no_worker_for_task", text, {"task": "unheard of", "workers": 1})
    ]
    raw = await staffed.enqueue("q", priority=1)
    assert await codes(staffed, raw.id) == ["next"], "a job without a task needs no worker that has it"


async def test_several_reasons_are_listed_together(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue("q")
    enqueued = await broker.enqueue("q", task="t")
    await broker.pause("q")
    assert await codes(broker, enqueued.id) == ["paused", "no_worker_for_queue", "behind"]
    later = await broker.enqueue("q", task="t", delay=60)
    assert await codes(broker, later.id) == ["scheduled", "paused", "no_worker_for_queue"]


async def test_the_job_is_scheduled(staffed: Broker, clock: WatchedClock) -> None:
    enqueued = await staffed.enqueue("q", task="t", delay=90)
    until = clock.time + timedelta(seconds=90)
    text = "It is scheduled until 2026-01-01 00:01:30 UTC (in 90.0 seconds)."
    assert await why(staffed, enqueued.id) == [("scheduled", text, {"run_at": until.isoformat()})]


async def test_the_job_waits_for_a_retry(staffed: Broker, clock: WatchedClock) -> None:
    job = await running(staffed, task="t", max_attempts=4)
    await staffed.nack(job, "Traceback (most recent call last):\n  …\nValueError: bad", delay=300)
    [(code, text, data)] = await why(staffed, job.id)
    assert code == "retry"
    assert text == (
        "It waits for retry 1 of 3, due 2026-01-01 00:05:00 UTC (in 5.0 minutes), after: ValueError: bad"
    )
    assert (data["retry"], data["retries"]) == (1, 3)
    assert data["error"].startswith("Traceback")


async def test_the_job_is_running(staffed: Broker, clock: WatchedClock) -> None:
    await staffed.enqueue("q", task="t")
    begun = clock.time
    job = await claim_one(staffed, worker="w-1")
    clock.advance(12.5)
    text = "It has been running on worker w-1 for 12.5 seconds, attempt 1 of 3."
    data = {"since": begun.isoformat(), "worker": "w-1", "attempt": 1, "max_attempts": 3}
    assert await why(staffed, job.id) == [("running", text, data)]
    await staffed.cancel(job.id)
    clock.advance(30)
    reasons = await why(staffed, job.id)
    assert [code for code, _, _ in reasons] == ["running", "cancel_requested", "lease_expired"]
    assert reasons[1][1] == "A cancel is requested, and the run has not ended yet."
    assert reasons[2][1] == "Its lease expired 12.5 seconds ago: the reap duty will end the claim."


async def test_the_job_has_finished(staffed: Broker, clock: WatchedClock) -> None:
    at = "2026-01-01 00:00:00 UTC"
    finished = {"finished_at": clock.time.isoformat(), "error": None}
    assert await why(staffed, await done(staffed)) == [("done", f"It succeeded at {at}.", finished)]
    assert await why(staffed, await cancelled(staffed)) == [
        ("cancelled", f"It was cancelled at {at}.", finished)
    ]
    job = await running(staffed, max_attempts=1)
    await staffed.nack(job, "ValueError: bad")
    data = {**finished, "error": "ValueError: bad", "attempts": 1, "max_attempts": 1}
    text = f"It failed permanently at {at} after 1 of 1 attempts: ValueError: bad"
    assert await why(staffed, job.id) == [("dead", text, data)]


async def test_the_job_expired(staffed: Broker, clock: WatchedClock) -> None:
    enqueued = await staffed.enqueue("q", task="t", expires=5)
    clock.advance(5)
    await staffed.promote()
    [(code, text, data)] = await why(staffed, enqueued.id)
    assert code == "cancelled"
    assert data["error"]
    assert text == f"It was cancelled at 2026-01-01 00:00:05 UTC ({data['error']})."
