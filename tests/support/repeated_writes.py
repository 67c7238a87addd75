"""Every write of the engine contract: a call, its expected reply, and jobs to apply it to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from dayjob import Broker, CancelOutcome, Job, JobState, Limit, NewJob, Retention
from dayjob.engines.base import (
    ClaimRequest,
    DocumentWrite,
    Engine,
    Insertion,
    Progress,
    Renewal,
    Reschedule,
    RetentionTimes,
    SettleOp,
    Token,
)
from dayjob.model.job import LEASE_EXPIRED, WORKER_GONE, EndedJob, id_key
from dayjob.model.lifecycle import EXPIRED, Transition
from dayjob.runtime.ids import new_key
from tests.support.arrange import claim_one, dead, quiet
from tests.support.observe import everything

LEASE = 60_000_000
REQUEST = ClaimRequest((("pending", LEASE),), 5, "w")
DOCUMENT = DocumentWrite("k", "a", None, b"1")


class Jobs(Struct):
    """A job in each state, on a queue of the state's name. The three dead ones are past their retention."""

    broker: Broker
    running: Job
    pending: bytes
    dead: list[bytes]

    @property
    def engine(self) -> Engine:
        return self.broker._engine

    def insertion(self) -> Insertion:
        return self.broker._validator.insertion(NewJob("new", kv={b"k": b"1"}))

    def ack(self) -> SettleOp:
        key, claim = self.running.key, self.running.claim
        return SettleOp(key, claim, Transition.ACK, RetentionTimes(), insert=(self.insertion(),))

    async def state(self) -> dict[str, Any]:
        """Return the whole state but the leases, which a repeated renewal may set again."""
        state = await everything(self.broker)
        for job in state["jobs"]:
            del job["lease_expires_at"]
        state["kv"] = await self.broker.kv_get(b"k")
        state["documents"] = (await self.engine.documents("k"))[1]
        state["limits"] = await self.broker.limits()
        return state


@asynccontextmanager
async def jobs_in_each_state(url: str) -> AsyncIterator[Jobs]:
    async with Broker(url, config=quiet(retention=Retention(dead=1e-6))) as broker:
        ids = [await dead(broker, "dead") for _ in range(3)]
        await broker.enqueue("running", task="t")
        running = await claim_one(broker, "running", lease=1e-6)
        pending = (await broker.enqueue("pending")).id
        await broker.enqueue("due", delay=1e-6)
        await broker.enqueue("expiring", task="t", expires=1e-6)
        await broker.set_limit("api", Limit(running=1))
        await broker.enqueue_many([NewJob("limited", limits=["api"])] * 3)
        await broker.claim("limited", limit=3, worker="other")
        yield Jobs(broker, running, id_key(pending), [id_key(id) for id in ids])


Call = Callable[[Jobs, Token | None], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "insert": lambda jobs, token: jobs.engine.insert([jobs.insertion()], token=token),
    "claim": lambda jobs, token: jobs.engine.claim([REQUEST], token=token),
    "insert_and_claim": lambda jobs, token: jobs.engine.insert_and_claim(
        [jobs.insertion()], [REQUEST], token=token
    ),
    "settle": lambda jobs, token: jobs.engine.settle([jobs.ack()], token=token),
    "renew": lambda jobs, token: jobs.engine.renew(
        [Renewal(jobs.running.key, jobs.running.claim, LEASE)], token=token
    ),
    "record_progress": lambda jobs, token: jobs.engine.record_progress(
        [Progress(jobs.running.key, jobs.running.claim, 0.1, "begun")], token=token
    ),
    "cancel": lambda jobs, token: jobs.engine.cancel([jobs.pending], token=token),
    "requeue": lambda jobs, token: jobs.engine.requeue(jobs.dead[:1], token=token),
    "requeue_dead": lambda jobs, token: jobs.engine.requeue_dead("dead", 5, token=token),
    "purge_dead": lambda jobs, token: jobs.engine.purge_dead("dead", 5, token=token),
    "purge": lambda jobs, token: jobs.engine.purge(jobs.dead[:2], token=token),
    "reschedule": lambda jobs, token: jobs.engine.reschedule(
        [Reschedule(jobs.pending, None, 7)], token=token
    ),
    "kv_write": lambda jobs, token: jobs.engine.kv_write([(b"k", b"1")], token=token),
    "pause": lambda jobs, token: jobs.engine.pause("q", True, token=token),
    "promote": lambda jobs, token: jobs.engine.promote(5, token=token),
    "reap": lambda jobs, token: jobs.engine.reap(5, token=token),
    "reclaim": lambda jobs, token: jobs.engine.reclaim(["w"], 5, token=token),
    "sweep": lambda jobs, token: jobs.engine.sweep(5, token=token),
    "sweep_finished": lambda jobs, token: jobs.engine.sweep_finished(JobState.DEAD, 0, None, 2, token=token),
    "set_limit": lambda jobs, token: jobs.engine.set_limit("api", b'{"running":2}', token=token),
    "compare_and_set": lambda jobs, token: jobs.engine.compare_and_set([DOCUMENT], token=token),
}
"""Each verb that takes a token."""


def claimed(reply: list[list[Job]]) -> list[tuple[bytes, int]]:
    return [(job.key, job.attempts) for jobs in reply for job in jobs]


def ended(jobs: list[EndedJob]) -> list[tuple[str, str, str, str, int, str]]:
    return [(job.queue, job.task, job.old_state, job.state, job.attempts, job.error) for job in jobs]


REPLIES: dict[str, Callable[[Jobs, Any], bool]] = {
    "insert": lambda jobs, reply: [each.created for each in reply] == [True],
    "claim": lambda jobs, reply: claimed(reply) == [(jobs.pending, 1)],
    "insert_and_claim": lambda jobs, reply: (
        [each.created for each in reply[0]] == [True] and claimed(reply[1]) == [(jobs.pending, 1)]
    ),
    "settle": lambda jobs, reply: reply == [JobState.DONE],
    "renew": lambda jobs, reply: reply[0].lease_us is not None,
    "record_progress": lambda jobs, reply: reply is None,
    "cancel": lambda jobs, reply: reply == [CancelOutcome.REMOVED],
    "requeue": lambda jobs, reply: reply == [True],
    "requeue_dead": lambda jobs, reply: reply == 3,
    "purge_dead": lambda jobs, reply: reply == 3,
    "purge": lambda jobs, reply: reply == 2,
    "reschedule": lambda jobs, reply: reply == [True],
    "kv_write": lambda jobs, reply: reply is None,
    "pause": lambda jobs, reply: reply is None,
    "promote": lambda jobs, reply: (
        (reply[0], ended(reply[1])) == (1, [("expiring", "t", "pending", "cancelled", 0, EXPIRED)])
    ),
    "reap": lambda jobs, reply: ended(reply) == [("running", "t", "running", "pending", 1, LEASE_EXPIRED)],
    "reclaim": lambda jobs, reply: ended(reply) == [("running", "t", "running", "pending", 1, WORKER_GONE)],
    "sweep": lambda jobs, reply: reply == (3, 0),
    "sweep_finished": lambda jobs, reply: reply == (2, jobs.dead[1]),
    "set_limit": lambda jobs, reply: reply == 1,
    "compare_and_set": lambda jobs, reply: reply is True,
}
"""The check of each verb's reply."""

LATER_WRITES: dict[str, Callable[[Jobs], Awaitable[Any]]] = {
    "record_progress": lambda jobs: jobs.engine.record_progress(
        [Progress(jobs.running.key, jobs.running.claim, 0.9, "nearly done")]
    ),
    "reschedule": lambda jobs: jobs.engine.reschedule([Reschedule(jobs.pending, None, 9)]),
    "kv_write": lambda jobs: jobs.engine.kv_write([(b"k", b"newer")]),
    "pause": lambda jobs: jobs.engine.pause("q", False),
    "set_limit": lambda jobs: jobs.engine.set_limit("api", b'{"running":1}'),
    "compare_and_set": lambda jobs: jobs.engine.compare_and_set([DocumentWrite("k", "a", b"1", None)]),
}
"""A write between the two tries, which a second application of the first would undo."""


def new_token(**fields: Any) -> Token:
    return Token(key=new_key(), client=new_key(), slot=0, number=1, **fields)
