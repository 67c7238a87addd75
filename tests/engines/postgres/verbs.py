"""One use of each verb."""

from __future__ import annotations

from dayjob import Broker, CancelOutcome, JobState, NewJob
from dayjob.engines.base import DocumentWrite
from tests.support.arrange import claim_one, record
from tests.support.observe import check_counters
from tests.support.workers import with_timeout


async def use_every_verb(broker: Broker) -> None:
    """Use every verb that has a statement of its own."""
    first = await broker.enqueue("q", b"data", kv={b"k": b"v"}, headers={"h": "1"})
    keyed = await broker.enqueue("q", dedup_key="d", delay=60)
    assert not (await broker.enqueue("q", dedup_key="d")).created
    await broker.enqueue_many([NewJob("q", b"%d" % number) for number in range(5)])
    job = await claim_one(broker)
    assert job.id == first.id
    await broker.renew(job, 60)
    await broker.ack(job, result=b"r", enqueue=[NewJob("after", dedup_key="x")], kv={b"l": b"w"})
    jobs = await broker.claim(["q", "after"], limit=10)
    assert len(jobs) == 6
    assert await broker.cancel(jobs[0].id) is CancelOutcome.REQUESTED
    await with_timeout(jobs[0].cancel_token.wait())
    await broker.mark_cancelled(jobs[0])
    await broker.dead_letter(jobs[1], "no good")
    await broker.dead_letter(jobs[2], "no good")
    assert await broker.nack(jobs[3], "no good", delay=60) is JobState.SCHEDULED
    await broker.release(jobs[4])
    await broker.snooze(jobs[5], 60)
    assert await broker.requeue(jobs[1].id)
    assert await broker.purge_dead() == 1
    assert await broker.reschedule(keyed.id, priority=5)
    assert await broker.cancel(keyed.id) is CancelOutcome.REMOVED
    assert (await record(broker, first.id)).result == b"r"
    assert len(await broker.jobs("q", state=JobState.DONE, newest_first=True)) == 1
    await broker.pause("q")
    assert await broker.paused() == {"q"}
    assert await broker.claim("q") == []
    await broker.resume("q")
    assert await broker.kv_get(b"k") == b"v"
    await broker.kv_put(b"k", b"x")
    await broker.kv_delete(b"k")
    await broker.promote()
    await broker.reap()
    await broker.sweep()
    await broker.sweep_done(0)
    engine = broker._engine
    assert await engine.compare_and_set([DocumentWrite("k", "a", None, b"1")], announce=True)
    assert await engine.compare_and_set(
        [DocumentWrite("k", "a", b"1", None), DocumentWrite("k", "b", None, b"2")]
    )
    assert [document.name for document in (await engine.documents("k"))[1]] == ["b"]
    assert len(await engine.reclaim(["gone"], 10)) == 0
    assert await engine.position(jobs[4].key, 10) == 1
    await check_counters(broker)
