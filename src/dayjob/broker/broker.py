"""The broker: a durable job queue on one storage URL.

It validates the arguments, and delegates to its open ``Session``: shared round trips, retries, waits on
signals, duties. The engine changes the jobs, by the rules of the lifecycle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from math import inf
from typing import Any, Self, Unpack

from dayjob.broker.held_claims import HeldClaims
from dayjob.broker.history import Sample
from dayjob.broker.session import OnEnqueued, Session, Unit, not_open
from dayjob.broker.validation import Policies, Validator
from dayjob.broker.worker_registry import Beat, Member
from dayjob.duties.duties import MAX_BATCH
from dayjob.duties.ended import OnEnded
from dayjob.engines.base import (
    BATCH,
    Capabilities,
    ClaimRequest,
    Diagnostic,
    JobQuery,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
)
from dayjob.engines.caller_connection import is_asynchronous
from dayjob.engines.registry import absolute, create_engine, without_password
from dayjob.errors import ConfigError, InvalidState, LeaseLost
from dayjob.model.config import BrokerConfig, check_priority
from dayjob.model.durations import SECOND, Duration, to_instant, to_micros, to_seconds_or_none
from dayjob.model.explanation import COUNTED_AHEAD, Explanation, Situation, explain
from dayjob.model.job import (
    CancelOutcome,
    Enqueued,
    Job,
    JobOptions,
    JobState,
    NewJob,
    QueueStats,
    Waited,
    known_key,
    new_job_like,
)
from dayjob.model.limits import Limit, LimitInfo, check_stored_limit, limit_name, queue_bucket
from dayjob.model.names import KEY_BYTES, check_kv_key, check_kv_value, check_name, check_queue, check_text
from dayjob.model.recurring import Recurring, Schedule
from dayjob.model.settlement import Settlement, SettleResult
from dayjob.model.worker_info import WorkerInfo
from dayjob.runtime import process
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import ANY_QUEUE, queue_topic

_log = logging.getLogger("dayjob.broker")

_ALL = 2**31 - 1

OnProgress = Callable[[int], None]
"""Gets the number of jobs changed so far, after each commit."""


class Broker:
    """A durable job queue on one storage URL.

    ``async with Broker("sqlite:///jobs.db") as broker:`` opens and closes it. It belongs to the process
    and the event loop that opened it.

    ``on_ended`` is called with the jobs whose state this broker changed without a worker: the lease expired,
    the worker is gone, the job expired, its record is corrupt, it was cancelled before it started, or it was
    requeued. The log has a line for each, too. ``on_enqueued`` is called with the jobs that it stored: for a
    caller, for a schedule or as follow-ups, but not in a transaction of the caller, which may roll back.
    """

    def __init__(
        self,
        url: str,
        *,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
        on_ended: OnEnded | None = None,
        on_enqueued: OnEnqueued | None = None,
    ) -> None:
        if config is not None and not isinstance(config, BrokerConfig):
            raise ConfigError(f"config={config!r} is a {type(config).__name__}: pass a BrokerConfig")
        self.config = config or BrokerConfig()
        self.url = absolute(url)
        self._on_ended = on_ended
        self._on_enqueued = on_enqueued
        self._clock = clock
        self._engine = create_engine(self.url, clock)
        self._shown_url = without_password(self.url)
        self._policies = Policies(self.config)
        self._engine.retention = self._policies.retention
        self._validator = Validator(self._policies, self.config.max_payload)
        self._claims = HeldClaims()
        self._opening = asyncio.Lock()
        self._opened: Session | None = None

    # Open and closed.

    async def open(self) -> Self:
        """Connect and start the duties. Opening an open broker does nothing."""
        async with self._opening:
            if self._opened is not None:
                _ = self._session  # Raises if it was opened by another process or event loop.
                return self
            await self._engine.open()
            self._opened = Session(
                self._shown_url, self._engine, self.config, self._validator, self._claims, self._clock,
                self._on_ended, self._on_enqueued,
            )  # fmt: skip
            if self.config.duties:
                self._opened.start_duties()
        return self

    async def close(self) -> None:
        """Stop the duties, commit the pending writes, release the storage. Claims stay as they are."""
        async with self._opening:
            session = self._opened
            if session is None:
                return
            if session.pid != process.pid:
                self._opened = None
                return
            if not session.loop.is_closed():
                session.check_here()
                await session.flush()
            try:
                await self._engine.close()
            finally:
                self._opened = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _session(self) -> Session:
        """Return the open session. Raise ``Closed`` if there is none for this process and event loop."""
        session = self._opened
        if session is None or session.closing:
            raise not_open(self._shown_url)
        if session.pid != process.pid or session.loop is not asyncio.get_running_loop():
            session.check_here()
        return session

    @property
    def is_open(self) -> bool:
        session = self._opened
        return session is not None and not session.closing and session.pid == process.pid

    @property
    def capabilities(self) -> Capabilities:
        """The engine's capabilities beyond its verbs."""
        return self._engine.capabilities

    # Enqueue.

    async def enqueue(
        self,
        queue: str,
        payload: bytes = b"",
        *,
        task: str = "",
        connection: Any = None,
        **options: Unpack[JobOptions],
    ) -> Enqueued:
        """Store a job; it is durable when this returns. The options are the fields of ``NewJob``.

        With an ``id``, a repeated call within an hour stores nothing and returns ``created=False``, also if
        the job was removed. With ``kv``, job and key-value writes commit together. With ``connection``, the
        job joins the open transaction of that database connection and exists when it commits.
        """
        return await self.enqueue_job(NewJob(queue, payload, task, **options), connection=connection)

    async def enqueue_job(self, job: NewJob, *, connection: Any = None) -> Enqueued:
        """``enqueue`` with the options in a ``NewJob``."""
        session = self._session
        unit = (self._validator.insertion(job),)
        if connection is not None:
            return (await self._engine.insert_tx(connection, unit))[0]
        return (await session.enqueue(unit))[0]

    def enqueue_tx(self, jobs: Sequence[NewJob], connection: Any) -> list[Enqueued]:
        """``enqueue_many`` for a synchronous connection, in the thread that the connection belongs to."""
        if not is_asynchronous(connection):
            work = self._engine.insert_tx(connection, self._unit(jobs))
            try:
                work.send(None)
            except StopIteration as stop:
                answers: list[Enqueued] = stop.value
                return answers
            work.close()
        raise TypeError(f"connection={connection!r} is asynchronous: use aenqueue")

    async def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Enqueued]:
        """Store up to 10,000 jobs, all or none. Return the answers in their order."""
        session = self._session
        unit = self._unit(jobs)
        if not unit:
            return []
        if connection is not None:
            return await self._engine.insert_tx(connection, unit)
        return await session.enqueue(unit)

    def check(self, jobs: Sequence[NewJob]) -> None:
        """Raise the error that ``enqueue_many`` would raise for these jobs. Nothing is stored."""
        self._unit(jobs)

    def _unit(self, jobs: Sequence[NewJob]) -> Unit:
        if len(jobs) > BATCH:
            raise ValueError(f"{len(jobs):,} jobs in one batch: pass at most {BATCH:,}, in several calls")
        return self._validator.insertions(jobs)

    # Claim.

    async def claim(
        self,
        queue_or_queues: str | Sequence[str],
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str | None = None,
    ) -> list[Job]:
        """Claim up to ``limit`` jobs (10,000 at most a call) from the queues, in the order given.

        If there is none, wait up to ``wait`` for the first job.
        """
        session = self._session
        names = [queue_or_queues] if isinstance(queue_or_queues, str) else [*dict.fromkeys(queue_or_queues)]
        request = self._claim_request(names, limit, lease, worker)
        seconds = to_micros(wait, "wait") / SECOND
        if request.limit == 0 or not names:
            return []
        if seconds == 0:
            return await session.claim(request)
        return await session.claim_waiting(request, [queue_topic(name) for name in names], seconds)

    async def claim_any(
        self,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str | None = None,
        after: str = "",
    ) -> list[Job]:
        """``claim`` from every queue, in name order, including queues that are created meanwhile.

        The queues that follow the name ``after`` come first, so that a caller can rotate.
        """
        session = self._session

        async def all_queues() -> ClaimRequest:
            pending = await session.storage.read(self._engine.pending_queues)
            pending.sort(key=lambda name: (name <= after, name))
            return self._claim_request(pending, limit, lease, worker)

        none = self._claim_request((), limit, lease, worker)
        return await session.claim_waiting(none, [ANY_QUEUE], to_micros(wait, "wait") / SECOND, all_queues)

    def _claim_request(
        self, names: Sequence[str], limit: int, lease: Duration | None, worker: str | None
    ) -> ClaimRequest:
        if worker is not None:
            check_name(worker, "worker name", KEY_BYTES)
        leases = tuple((name, self._lease(name, lease)) for name in names)
        return ClaimRequest(leases, min(_check_limit(limit), BATCH), worker)

    # Settle and renew.

    async def ack(
        self,
        job: Job,
        *,
        result: bytes | None = None,
        enqueue: Sequence[NewJob] = (),
        kv: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Settle as a success. Follow-up jobs and kv writes commit with it, or not at all."""
        await self._settle(Settlement.ack(job, result=result, enqueue=enqueue, kv=kv))

    async def nack(self, job: Job, error: str | BaseException, *, delay: Duration | None = None) -> JobState:
        """Settle as a failure: retry after ``delay`` (or the queue's backoff), or dead. Return the state."""
        return await self._settle(Settlement.nack(job, error, delay=delay))

    async def dead_letter(self, job: Job, reason: str | BaseException) -> None:
        """Settle as dead, regardless of the remaining attempts."""
        await self._settle(Settlement.dead_letter(job, reason))

    async def release(self, job: Job) -> None:
        """Return the job to its queue immediately. This run does not count as an attempt."""
        await self._settle(Settlement.release(job))

    async def snooze(self, job: Job, delay: Duration) -> None:
        """Return the job to its queue after the delay. This run does not count as an attempt."""
        await self._settle(Settlement.snooze(job, delay))

    async def mark_cancelled(self, job: Job) -> None:
        """Settle as cancelled, because the handler stopped after a cancel request."""
        await self._settle(Settlement.mark_cancelled(job))

    async def settle_many(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Settle many claims: in one commit, or in several if they are larger than 8 MiB.

        A lost claim is reported and affects no other.
        """
        session = self._session
        if len(settlements) > BATCH:
            raise ValueError(f"{len(settlements):,} settlements in one batch: pass at most {BATCH:,}")
        ops = tuple([self._validator.settle_op(settlement) for settlement in settlements])
        states = await session.settle_many(ops) if ops else []
        self._claims.drop([settlement.job for settlement in settlements])
        return [SettleResult(op.key, state is not None, state) for op, state in zip(ops, states, strict=True)]

    async def _settle(self, settlement: Settlement) -> JobState:
        session = self._session
        state = (await session.settle((self._validator.settle_op(settlement),)))[0]
        self._claims.drop([settlement.job])
        if state is None:
            raise _lost(settlement.job, settlement.transition.value)
        return state

    async def renew(self, job: Job, lease: Duration | None = None) -> None:
        """Set the lease to ``lease`` (or the queue's) from now, and ``job.lease_expires_at`` with it."""
        session = self._session
        renewed = await session.renew(Renewal(job.key, job.claim, self._lease(job.queue, lease)))
        if renewed.lease_us is None:
            self._claims.drop([job])
            raise _lost(job, "renew")
        job.lease_us = renewed.lease_us
        if renewed.cancel_requested:
            self._claims.cancel_requested(job)

    async def renew_many(self, jobs: Sequence[Job], lease: Duration | None = None) -> list[Renewed]:
        """Set new leases for many claims in one commit. A lost claim gets no lease."""
        session = self._session
        renewals = [Renewal(job.key, job.claim, self._lease(job.queue, lease)) for job in jobs]
        return await session.renew_all(renewals) if renewals else []

    async def record_progress(self, reports: Sequence[Progress]) -> None:
        """Store the progress of runs. The reports of lost claims are ignored."""
        session = self._session
        if reports:
            await session.storage.write(partial(self._engine.record_progress, reports))

    def lease_of(self, queue: str, lease: Duration | None = None) -> float:
        """Return the seconds that a claim on the queue lasts."""
        return self._lease(queue, lease) / SECOND

    def _lease(self, queue: str, lease: Duration | None) -> int:
        policy = self._policies.of(queue)
        if lease is None:
            return policy.lease
        micros = to_micros(lease, "lease")
        if micros == 0:
            raise ValueError("lease=0: a claim needs time to run; pass some seconds")
        return micros

    # Cancel, wait, read.

    async def cancel(self, id: str) -> CancelOutcome:
        """Cancel a waiting job, or store a cancel request for a running one."""
        session, key = self._session, known_key(id)
        return CancelOutcome.NOT_FOUND if key is None else await session.cancel(key)

    async def cancel_many(self, ids: Sequence[str]) -> list[CancelOutcome]:
        """``cancel`` of many, in commits of up to 1,000. Return the outcomes in their order."""
        session, keys = self._session, _keys(ids)
        outcomes: dict[bytes | None, CancelOutcome] = {}
        for start in range(0, len(keys), MAX_BATCH):
            some = keys[start : start + MAX_BATCH]
            outcomes |= zip(some, await session.cancel_all(some), strict=True)
        return [outcomes.get(known_key(id), CancelOutcome.NOT_FOUND) for id in ids]

    async def wait(self, id: str, timeout: Duration | None = None) -> Waited:
        """Wait until the job has finished in any process. ``timeout=None`` waits indefinitely."""
        session, key = self._session, known_key(id)
        seconds = to_seconds_or_none(timeout, "timeout")
        return Waited("not_found") if key is None else await session.wait(key, seconds)

    async def get(self, id: str) -> Job | None:
        """Return the full record of a job, or None if it does not exist or was removed."""
        session, key = self._session, known_key(id)
        return None if key is None else await session.get(key)

    async def jobs(
        self,
        queue: str | None = None,
        state: JobState | str | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Job]:
        """Return jobs in id order, the order of enqueuing. ``after`` is the id of the last one seen."""
        storage = self._session.storage
        _check_filter(queue, task)
        cursor = None if after is None else known_key(after)
        if _check_limit(limit) == 0 or (after is not None and cursor is None):
            return []
        query = JobQuery(
            min(limit, _ALL),
            queue=queue,
            state=None if state is None else _to_state(state),
            task=task,
            after=cursor,
            newest_first=newest_first,
        )
        return await storage.read(partial(self._engine.find, query))

    async def dead_jobs(
        self, queue: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return dead jobs in id order."""
        return await self.jobs(queue, JobState.DEAD, after=after, limit=limit)

    async def latest_dead(
        self, queue: str | None = None, before: Job | None = None, limit: int = 100
    ) -> list[Job]:
        """Return dead jobs, the latest failure first. ``before`` is the last one seen."""
        storage = self._session.storage
        _check_filter(queue)
        cursor = None if before is None else (before.finished_us or 0, before.key)
        limit = min(_check_limit(limit), _ALL)
        return await storage.read(partial(self._engine.find_dead, queue, cursor, limit)) if limit else []

    async def stats(self, queue: str) -> QueueStats:
        """Return the number of jobs of the queue by state; zeros for an unknown queue."""
        storage = self._session.storage
        check_queue(queue)
        return (await storage.read(self._engine.stats)).get(queue, QueueStats())

    async def all_stats(self) -> dict[str, QueueStats]:
        """Return ``stats`` of every queue ever used, by name."""
        return await self._session.storage.read(self._engine.stats)

    async def queues(self) -> list[str]:
        """Return every queue ever used, in name order."""
        return list(await self.all_stats())

    async def explain(self, id: str) -> Explanation:
        """Return the reasons for a job's state: why it is not running, or which worker runs it."""
        session, key = self._session, known_key(id)
        job = None if key is None else await session.get(key)
        now, live = await session.worker_registry.live()
        paused, ahead = False, 0
        if job is not None and not job.state.finished:
            paused = job.queue in await self.paused()
            if job.state is JobState.PENDING or job.state is JobState.LIMITED:
                ahead = await session.storage.read(partial(self._engine.position, job.key, COUNTED_AHEAD))
        limit, due = None, None
        if job is not None and job.limited_by is not None:
            stored = {info.name: info for info in await self.limits()}
            limit = stored.get(job.limited_by) or stored.get(limit_name(job.limited_by))
            due = await session.storage.read(partial(self._engine.bucket_due, job.limited_by))
        return explain(id, job, Situation(now, paused, ahead, [seen.info() for seen in live], limit, due))

    async def history(self, hours: int = 1) -> tuple[int, list[Sample]]:
        """Return the time now, and the counters of each minute of the last hours in which they changed."""
        return await self._session.history.read(hours)

    async def first_due(self, stats: Mapping[str, QueueStats], timeout: float = inf) -> dict[str, int]:
        """Return the due time of the first pending job, for the hundred queues with the most pending jobs.

        After ``timeout`` seconds the rest of the queues is left out.
        """
        return await self._session.history.first_due(stats, timeout)

    async def diagnose(self) -> list[Diagnostic]:
        """Return the findings about the storage that ``dayjob doctor`` shows."""
        return await self._session.storage.read(self._engine.diagnose)

    # Change jobs from outside the claim.

    async def requeue(self, id: str) -> bool:
        """Make a dead job pending, with all its attempts. False if it isn't a dead job."""
        return await self.requeue_many([id]) == 1

    async def requeue_many(self, ids: Sequence[str], *, on_progress: OnProgress | None = None) -> int:
        """``requeue`` of many. Return how many were dead jobs."""
        session = self._session

        async def requeue(keys: Sequence[bytes]) -> int:
            requeued = await session.storage.write(partial(self._engine.requeue, keys))
            session.report_ended()
            return sum(requeued)

        return await _in_chunks(_keys(ids), requeue, on_progress)

    async def purge_many(self, ids: Sequence[str], *, on_progress: OnProgress | None = None) -> int:
        """Remove those of the jobs that are dead. Return their number."""
        storage = self._session.storage
        purged = await _in_chunks(
            _keys(ids),
            lambda keys: storage.write(partial(self._engine.purge, keys)),
            on_progress,
        )
        _log.debug("%d dead jobs were purged", purged)
        return purged

    async def requeue_dead(self, queue: str, *, on_progress: OnProgress | None = None) -> int:
        """Requeue the jobs of the queue that are dead now. Return their number."""
        session = self._session

        async def requeue(limit: int) -> int:
            number = await session.storage.write(partial(self._engine.requeue_dead, queue, limit))
            session.report_ended()
            return number

        return await _up_to((await self.stats(queue)).dead, requeue, on_progress)

    async def purge_dead(self, queue: str | None = None, *, on_progress: OnProgress | None = None) -> int:
        """Remove the jobs that are dead now, of one queue or of all. Return their number."""
        storage = self._session.storage
        counted = [await self.stats(queue)] if queue is not None else (await self.all_stats()).values()
        purged = await _up_to(
            sum(stats.dead for stats in counted),
            lambda limit: storage.write(partial(self._engine.purge_dead, queue, limit)),
            on_progress,
        )
        _log.debug("%d dead jobs were purged", purged)
        return purged

    async def reschedule(self, id: str, run_at: datetime | None = None, priority: int | None = None) -> bool:
        """Change the due time or the priority of a waiting job. False if it isn't waiting."""
        storage = self._session.storage
        if run_at is None and priority is None:
            raise ValueError("nothing to change: pass run_at, priority, or both")
        instant = None if run_at is None else to_instant(run_at, "run_at")
        if priority is not None:
            check_priority(priority, "priority")
        key = known_key(id)
        if key is None:
            return False
        change = Reschedule(key, instant, priority)
        return (await storage.write(partial(self._engine.reschedule, [change])))[0]

    async def rerun(self, id: str) -> Enqueued:
        """Enqueue a copy of a finished job, which must still be kept."""
        job = await self.get(id)
        if job is None or not job.state.finished:
            found = "it does not exist or was removed" if job is None else f"it is {job.state.value}"
            raise InvalidState(
                f"job {id!r} can't be rerun, because {found}: pass the id of a kept finished job"
            )
        return await self.enqueue_job(new_job_like(job))

    async def sweep_done(self, retention: Duration) -> int:
        """Remove done jobs that finished that long ago or earlier, regardless of their own retention."""
        return await self._sweep_finished(JobState.DONE, retention)

    async def sweep_dead(self, retention: Duration) -> int:
        """Remove dead jobs that finished that long ago or earlier, regardless of their own retention."""
        return await self._sweep_finished(JobState.DEAD, retention)

    async def _sweep_finished(self, state: JobState, retention: Duration) -> int:
        storage = self._session.storage
        age = to_micros(retention, "retention")
        total = 0
        after: bytes | None = None
        while True:
            sweep = partial(self._engine.sweep_finished, state, age, after, MAX_BATCH)
            removed, after = await storage.write(sweep)
            total += removed
            if after is None:
                return total

    # Queues and values.

    async def pause(self, queue: str) -> None:
        """Stop claims from the queue, in all processes. It still accepts jobs."""
        await self._pause(queue, True)

    async def resume(self, queue: str) -> None:
        """Allow claims from the queue again."""
        await self._pause(queue, False)

    async def _pause(self, queue: str, paused: bool) -> None:
        storage = self._session.storage
        check_queue(queue)
        await storage.write(partial(self._engine.pause, queue, paused))

    async def paused(self) -> set[str]:
        return await self._session.storage.read(self._engine.paused)

    async def kv_get(self, key: bytes) -> bytes | None:
        storage = self._session.storage
        check_kv_key(key)
        return (await storage.read(partial(self._engine.kv_get, [key])))[0]

    async def kv_put(self, key: bytes, value: bytes) -> None:
        session = self._session
        check_kv_key(key)
        check_kv_value(value)
        await session.storage.write(partial(self._engine.kv_write, [(key, value)]))

    async def kv_delete(self, key: bytes) -> None:
        storage = self._session.storage
        check_kv_key(key)
        await storage.write(partial(self._engine.kv_write, [(key, None)]))

    # Limits.

    async def limits(self) -> list[LimitInfo]:
        """Return the stored limits by name, with their use."""
        return await self._session.storage.read(self._engine.limits)

    async def set_limit(self, name: str, limit: Limit) -> None:
        """Store a limit in place of any with this name. Running jobs keep their room.

        ``name:key`` is the limit of that key only, and ``queue:NAME`` that of a queue.
        """
        await self._session.limits.put(check_stored_limit(name), limit.settings())

    async def remove_limit(self, name: str) -> bool:
        """Remove a stored limit, so that its jobs have room. False if there is none."""
        return await self._session.limits.put(check_stored_limit(name), None)

    async def declare_limits(self, app: str, limits: Sequence[Limit]) -> None:
        """Store the limits that an app's code and the configuration of this broker declare."""
        declared = {limit.name: limit.settings(app) for limit in limits}
        for queue, config in self.config.queues.items():
            if config.limit is not None:
                declared[queue_bucket(queue)] = config.limit.settings(app)
        if declared:
            await self._session.limits.declare(app, declared)

    # Recurring jobs.

    async def schedule(self, recurring: Recurring) -> Schedule:
        """Store a recurring job, in place of any with the same id. The time of the last run is kept."""
        return await self._session.schedules.put(recurring)

    async def declare(self, app: str, recurring: Sequence[Recurring]) -> None:
        """Store the recurring jobs that an app's code declares, in one commit."""
        await self._session.schedules.declare(app, recurring)

    async def unschedule(self, id: str) -> bool:
        """Remove a recurring job. False if there is none. Its enqueued jobs stay."""
        return await self._session.schedules.remove(id)

    async def schedules(self) -> list[Schedule]:
        """Return all recurring jobs by id, with their last (``last_at``) and next (``next_at``) time."""
        return await self._session.schedules.all()

    async def trigger(self, id: str) -> Enqueued:
        """Enqueue a recurring job now, paused or not. Its due times stay as they are."""
        for schedule in await self.schedules():
            if schedule.id == id:
                return await self.enqueue_job(schedule.new_job(None))
        raise InvalidState(f"there is no schedule {id!r} to trigger: list the schedules for its id")

    async def pause_schedule(self, id: str) -> bool:
        """Stop a recurring job until it is resumed. False if there is none."""
        return await self._session.schedules.pause(id)

    async def resume_schedule(self, id: str) -> bool:
        """Continue a recurring job, from its next due time on. False if there is none."""
        return await self._session.schedules.resume(id)

    # Workers.

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers that are alive, on any machine."""
        _, live = await self._session.worker_registry.live()
        return [seen.info() for seen in live]

    async def register(self, member: Member) -> Member:
        """Register a worker. It has to send heartbeats from now on."""
        return await self._session.worker_registry.join(member)

    async def beat(self, member: Member, running: int) -> Member | None:
        """Store a heartbeat of the worker. None if it has been declared dead."""
        return await self._session.worker_registry.beat(member, running)

    async def store_beats(self, beats: Sequence[Beat]) -> bool:
        """Store the heartbeats of several workers in one commit. If any of them is refused, store none."""
        return await self._session.worker_registry.store_beats(beats)

    async def deregister(self, member: Member) -> None:
        """Remove a worker from the registry."""
        await self._session.worker_registry.leave(member)

    # Duties.

    def start_duties(self) -> None:
        """Run the duties in this process until ``close``, regardless of the configuration."""
        self._session.start_duties()

    async def stop_duties(self) -> None:
        if self._opened is not None:
            await self._opened.stop_duties()

    async def release_undelivered(self) -> None:
        """Wait until the jobs of cancelled claims are released. A worker calls it before it ends."""
        await self._session.release_undelivered()

    async def promote(self) -> int:
        """Make due jobs pending and cancel expired ones. Return how many became pending."""
        return await self._session.promote.promote()

    async def next_due(self) -> int | None:
        """Return microseconds until the next job is due or expires; None if there is none."""
        return await self._session.promote.next_due()

    async def reap(self) -> int:
        """End expired and orphaned claims, so that their jobs run again or are dead. Return their number."""
        return await self._session.reap.reap()

    async def reclaim(self, *, trust_silence: bool = True) -> int:
        """End the claims of dead workers. Return their number.

        A worker is dead if its process is known to be gone, or if it is silent by the engine's clock. Without
        ``trust_silence`` its silence counts only as far as this process has watched it.
        """
        return await self._session.reclaim.reclaim(trust_silence=trust_silence)

    async def reclaim_from(self, workers: Sequence[str]) -> int:
        """End the claims of the workers with these ids, as if the leases had expired. Return their number."""
        return await self._session.reclaim.reclaim_from(workers)

    async def recur(self) -> int:
        """Enqueue the recurring jobs that are due. Return microseconds until the next call is due."""
        return await self._session.schedules.fire()

    async def sample(self) -> int:
        """Store the counters for the throughput history. Return microseconds until the next sample is due."""
        return await self._session.history.sample()

    async def lead(self) -> float:
        """Renew the lead of the fleet, or try to get it. Return seconds until the next call is due."""
        return await self._session.lead.run_once()

    @property
    def leads(self) -> bool:
        """Whether this process does the fleet's duties."""
        return self._opened is not None and self._opened.election.leads

    async def sweep(self) -> int:
        """Remove finished jobs whose retention is over. Return their number."""
        return await self._session.sweep.sweep()

    async def check_cancels(self) -> None:
        """Fire the cancel tokens of this process's claims that have a cancel request."""
        await self._session.watch_cancels.run_once()


def _lost(job: Job, verb: str) -> LeaseLost:
    return LeaseLost(
        f"the {verb} of job {job.id} changed nothing: the claim with epoch {job.epoch} is no longer current, "
        "because its lease expired or it was settled before; drop this run's outcome"
    )


def _keys(ids: Sequence[str]) -> list[bytes]:
    return [key for key in map(known_key, dict.fromkeys(ids)) if key is not None]


def _check_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"limit={limit!r}: pass a whole number, 0 or more")
    return limit


def _check_filter(queue: str | None, task: str | None = None) -> None:
    """Raise if an engine can't compare names with these. Other names that no job has match none."""
    if queue is not None:
        check_text(queue, "queue name")
    if task is not None:
        check_text(task, "task name")


def _to_state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError:
        known = ", ".join(repr(member.value) for member in JobState)
        raise ValueError(f"state={state!r}: pass one of {known}") from None


# Commands on many jobs, in commits of ``MAX_BATCH``.


async def _in_chunks(
    keys: Sequence[bytes], change: Callable[[Sequence[bytes]], Awaitable[int]], on_progress: OnProgress | None
) -> int:
    total = 0
    for start in range(0, len(keys), MAX_BATCH):
        total += await change(keys[start : start + MAX_BATCH])
        if on_progress is not None:
            on_progress(total)
    return total


async def _up_to(left: int, change: Callable[[int], Awaitable[int]], on_progress: OnProgress | None) -> int:
    """Change up to ``left`` jobs. Return how many were changed.

    The limit ends the loop even if new jobs are added meanwhile.
    """
    total = 0
    while left > 0:
        changed = await change(min(left, MAX_BATCH))
        if changed == 0:
            break
        total += changed
        left -= changed
        if on_progress is not None:
            on_progress(total)
    return total
