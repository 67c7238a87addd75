"""The broker: enqueue, claim, settle, cancel, wait.

It checks what callers pass, shares round trips between concurrent calls, and waits on signals instead
of polling. What a job goes through is decided by the engine under the rules of the lifecycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from dayjob.broker.fleet import Fleet
from dayjob.broker.operations import check_limit
from dayjob.engines.base import BATCH, ClaimRequest, Insertion, Progress, Renewal, Renewed, WaitingClaim
from dayjob.engines.caller_connection import is_asynchronous
from dayjob.errors import LeaseLost
from dayjob.model.durations import SECOND, Duration, to_micros
from dayjob.model.job import CancelOutcome, DedupUntil, Enqueued, Job, JobState, NewJob, Waited, known_key
from dayjob.model.names import KEY_BYTES, check_name
from dayjob.model.settlement import Settlement, SettleResult
from dayjob.runtime.signals import ANY_QUEUE, Topic, job_topic, queue_topic


class Broker(Fleet):
    """A durable job queue on one storage URL.

    ``async with Broker("sqlite:///jobs.db") as broker:`` opens and closes it. It belongs to the process
    and the event loop that opened it.
    """

    async def enqueue(
        self,
        queue: str,
        payload: bytes = b"",
        *,
        task: str = "",
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        expires: Duration | datetime | None = None,
        max_attempts: int | None = None,
        dedup_key: str | None = None,
        dedup_until: DedupUntil = "claimed",
        headers: Mapping[str, str] | None = None,
        tenant: str | None = None,
        kv: Mapping[bytes, bytes] | None = None,
        id: str | UUID | None = None,
        connection: Any = None,
    ) -> Enqueued:
        """Store a job; it is durable when this returns.

        With ``kv``, job and key-value writes commit together. With ``connection``, the job joins the open
        transaction of that database connection and exists when it commits.
        """
        job = NewJob(
            queue, payload, task, priority, run_at, delay, expires, max_attempts, dedup_key, dedup_until,
            headers, tenant, kv, id,
        )  # fmt: skip
        return await self.enqueue_job(job, connection=connection)

    async def enqueue_job(self, job: NewJob, *, connection: Any = None) -> Enqueued:
        """``enqueue`` with the options in a ``NewJob``."""
        self._check_open()
        unit = (self._validator.insertion(job),)
        if connection is not None:
            return (await self._engine.insert_tx(connection, unit, self._now()))[0]
        return (await self._enqueue(unit))[0]

    def enqueue_tx(self, jobs: Sequence[NewJob], connection: Any) -> list[Enqueued]:
        """``enqueue_many`` for a synchronous connection, in the thread that the connection belongs to."""
        if is_asynchronous(connection):
            raise TypeError(f"connection={connection!r} is asynchronous: use aenqueue")
        work = self._engine.insert_tx(connection, self._unit(jobs), self._now())
        try:
            work.send(None)
        except StopIteration as stop:
            answers: list[Enqueued] = stop.value
            return answers
        work.close()
        raise TypeError(f"connection={connection!r} is asynchronous: use aenqueue")

    async def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Enqueued]:
        """Store up to 10,000 jobs, all or none; answers in their order."""
        self._check_open()
        unit = self._unit(jobs)
        if not unit:
            return []
        if connection is not None:
            return await self._engine.insert_tx(connection, unit, self._now())
        return await self._enqueue(unit)

    def _unit(self, jobs: Sequence[NewJob]) -> tuple[Insertion, ...]:
        """The checked jobs of one atomic batch."""
        if len(jobs) > BATCH:
            raise ValueError(f"{len(jobs):,} jobs in one batch: pass at most {BATCH:,}, in several calls")
        return tuple(self._validator.insertion(job) for job in jobs)

    async def claim(
        self,
        queue_or_queues: str | Sequence[str],
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str | None = None,
    ) -> list[Job]:
        """Take up to ``limit`` jobs (10,000 at most a call) from the queues, in the order given.

        With nothing to take, waits up to ``wait`` for the first job, woken when one arrives.
        """
        self._check_open()
        names = [queue_or_queues] if isinstance(queue_or_queues, str) else [*dict.fromkeys(queue_or_queues)]
        request = self._claim_request(names, limit, lease, worker)
        seconds = to_micros(wait, "wait") / SECOND
        if request.limit == 0 or not names:
            return []
        if seconds == 0:
            return await self._claiming.submit(request)
        topics = [queue_topic(name) for name in names]

        async def the_request(waiting: WaitingClaim) -> ClaimRequest:
            return replace(request, waiting=waiting) if len(names) == 1 else request

        return await self._claim_waiting(the_request, topics, seconds)

    async def claim_any(
        self,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str | None = None,
    ) -> list[Job]:
        """``claim`` from every queue, in name order; also from those that come into being meanwhile."""
        self._check_open()

        async def all_queues(waiting: WaitingClaim) -> ClaimRequest:
            return self._claim_request(await self.queues(), limit, lease, worker)

        return await self._claim_waiting(all_queues, [ANY_QUEUE], to_micros(wait, "wait") / SECOND)

    def _claim_request(
        self, names: Sequence[str], limit: int, lease: Duration | None, worker: str | None
    ) -> ClaimRequest:
        if worker is not None:
            check_name(worker, "worker name", KEY_BYTES)
        leases = tuple((name, self._lease(name, lease)) for name in names)
        return ClaimRequest(leases, min(check_limit(limit), BATCH), worker)

    async def _claim_waiting(
        self,
        requested: Callable[[WaitingClaim], Awaitable[ClaimRequest]],
        topics: Sequence[Topic],
        seconds: float,
    ) -> list[Job]:
        """Try, and try again whenever something may have come, until the time is over."""
        deadline = self._clock.elapsed() + seconds
        with self._engine.signals.listen(topics) as event, self._seat(event) as waiting:
            while True:
                event.clear()
                request = await requested(waiting)
                jobs = await self._claiming.submit(request) if request.queues and request.limit else []
                jobs = waiting.take(jobs, request.limit)
                left = deadline - self._clock.elapsed()
                if jobs or left <= 0:
                    return jobs
                jobs = await self._offers.wait(request, event, self._clock, left)
                if jobs := waiting.take(jobs, request.limit):
                    return jobs
                self._check_open()

    @contextmanager
    def _seat(self, event: asyncio.Event) -> Iterator[WaitingClaim]:
        """Where jobs arrive while the block runs; what comes later, or stays there, is released."""

        def arrived(job: Job) -> None:
            self._claims.hold([job])
            event.set()

        waiting = WaitingClaim(arrived, self._give_back)
        try:
            yield waiting
        finally:
            waiting.close()

    # Settling.

    async def ack(
        self,
        job: Job,
        *,
        result: bytes | None = None,
        enqueue: Sequence[NewJob] = (),
        kv: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Success. Follow-up jobs and kv writes commit with it, or not at all."""
        await self._settle_one(Settlement.ack(job, result=result, enqueue=enqueue, kv=kv))

    async def nack(self, job: Job, error: str | BaseException, *, delay: Duration | None = None) -> JobState:
        """Failure: retried after ``delay`` (or the queue's backoff) or dead; the new state."""
        return await self._settle_one(Settlement.nack(job, error, delay=delay))

    async def dead_letter(self, job: Job, reason: str | BaseException) -> None:
        """Failure for good, whatever the attempts."""
        await self._settle_one(Settlement.dead_letter(job, reason))

    async def release(self, job: Job) -> None:
        """Give the job back at once, as if this run had not been."""
        await self._settle_one(Settlement.release(job))

    async def snooze(self, job: Job, delay: Duration) -> None:
        """Give the job back for later, as if this run had not been."""
        await self._settle_one(Settlement.snooze(job, delay))

    async def mark_cancelled(self, job: Job) -> None:
        """End the job as cancelled, because its handler gave up on a cancel request."""
        await self._settle_one(Settlement.mark_cancelled(job))

    async def settle_many(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Settle many claims in one commit; those that are lost are reported and harm no other."""
        self._check_open()
        if len(settlements) > BATCH:
            raise ValueError(f"{len(settlements):,} settlements in one batch: pass at most {BATCH:,}")
        ops = tuple([self._validator.settle_op(settlement) for settlement in settlements])
        states = await self._settling.submit(ops) if ops else []
        self._claims.let_go([settlement.job for settlement in settlements])
        return [SettleResult(op.key, state is not None, state) for op, state in zip(ops, states, strict=True)]

    async def _settle_one(self, settlement: Settlement) -> JobState:
        self._check_open()
        state = (await self._settling.submit((self._validator.settle_op(settlement),)))[0]
        self._claims.let_go([settlement.job])
        if state is None:
            raise _lost(settlement.job, settlement.transition.value)
        return state

    async def renew(self, job: Job, lease: Duration | None = None) -> None:
        """Set the lease to ``lease`` (or the queue's) from now, and ``job.lease_expires_at`` with it."""
        self._check_open()
        renewed = await self._renewing.submit(Renewal(job.key, job.epoch, self._lease(job.queue, lease)))
        if renewed.lease_us is None:
            self._claims.let_go([job])
            raise _lost(job, "renew")
        job.lease_us = renewed.lease_us
        if renewed.cancel_requested:
            self._claims.requested(job)

    async def renew_many(self, jobs: Sequence[Job], lease: Duration | None = None) -> list[Renewed]:
        """Set new leases for many claims in one commit; a lost one is answered with no lease."""
        self._check_open()
        renewals = [Renewal(job.key, job.epoch, self._lease(job.queue, lease)) for job in jobs]
        return await self._renew(renewals) if renewals else []

    async def record_progress(self, reports: Sequence[Progress]) -> None:
        """Store how far runs are; what lost claims report is passed over."""
        self._check_open()
        if reports:
            await self._write(lambda token: self._engine.record_progress(reports, token=token))

    def lease_of(self, queue: str, lease: Duration | None = None) -> float:
        """How many seconds a claim on the queue lasts."""
        return self._lease(queue, lease) / SECOND

    def _lease(self, queue: str, lease: Duration | None) -> int:
        policy = self._policies.of(queue)
        if lease is None:
            return policy.lease
        micros = to_micros(lease, "lease")
        if micros == 0:
            raise ValueError("lease=0: a claim needs time to run; pass some seconds")
        return micros

    # From outside the claim.

    async def cancel(self, id: str) -> CancelOutcome:
        """End a waiting job, or ask a running one to stop."""
        self._check_open()
        key = known_key(id)
        return CancelOutcome.NOT_FOUND if key is None else await self._cancelling.submit(key)

    async def wait(self, id: str, timeout: Duration | None = None) -> Waited:
        """Wait until the job has finished, in whichever process; ``timeout=None`` waits without end."""
        self._check_open()
        seconds = None if timeout is None else to_micros(timeout, "timeout") / SECOND
        key = known_key(id)
        if key is None:
            return Waited("not_found")
        deadline = None if seconds is None else self._clock.elapsed() + seconds
        seen = False
        with self._engine.signals.listen([job_topic(key)]) as event:
            while True:
                event.clear()
                job = await self._reading.submit(key)
                if job is None:
                    return Waited("completed" if seen else "not_found")
                if job.state.finished:
                    return Waited("completed", job)
                seen = True
                left = None if deadline is None else deadline - self._clock.elapsed()
                if left is not None and left <= 0:
                    return Waited("timed_out", job)
                await self._clock.wait(event, left)
                self._check_open()


def _lost(job: Job, verb: str) -> LeaseLost:
    return LeaseLost(
        f"the {verb} of job {job.id} changed nothing: the claim with epoch {job.epoch} is no longer current, "
        "because its lease expired or it was settled before; drop this run's outcome"
    )
