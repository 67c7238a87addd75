"""An open broker: one connection to the storage, for one process and one event loop.

It owns everything that lives from ``open`` to ``close``: the storage with its retries, the batchers that
share round trips, the waiting claims, the documents of the fleet, and the duties.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from msgspec.structs import replace

from dayjob.broker.batcher import CallBatcher, insertions_weight, ops_weight, split_ops
from dayjob.broker.held_claims import HeldClaims
from dayjob.broker.history import History
from dayjob.broker.leader_election import LeaderElection
from dayjob.broker.limits import Limits
from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.broker.schedules import Schedules
from dayjob.broker.validation import Validator
from dayjob.broker.worker_registry import WorkerRegistry
from dayjob.duties.duties import Lead, Led, Periodic, Promote, Reap, Reclaim, Rewake, Sweep, WatchCancels
from dayjob.duties.ended import EndedJobs, OnEnded
from dayjob.duties.service import Duty, Service
from dayjob.engines.base import (
    BATCH_BYTES,
    ClaimRequest,
    Engine,
    Insertion,
    Renewal,
    Renewed,
    SettleOp,
    WaitingClaim,
)
from dayjob.errors import Closed, DayjobError, EngineUnavailable
from dayjob.model.config import BrokerConfig
from dayjob.model.durations import SECOND, Duration, to_micros
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState, Waited
from dayjob.model.lifecycle import Transition
from dayjob.runtime import process
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.signals import CANCEL, FEW, Topic, documents_topic, job_topic

_log = logging.getLogger("dayjob.broker")

OnEnqueued = Callable[[Sequence[Insertion]], None]
"""Gets the jobs that were stored."""

Unit = tuple[Insertion, ...]
"""Jobs that are stored all or none."""

Ops = tuple[SettleOp, ...]

Reply = TypeVar("Reply")


class Session:
    """``claims`` outlives the session: its tokens belong to jobs."""

    def __init__(
        self,
        url: str,
        engine: Engine,
        config: BrokerConfig,
        validator: Validator,
        claims: HeldClaims,
        clock: Clock | None,
        on_ended: OnEnded | None,
        on_enqueued: OnEnqueued | None,
    ) -> None:
        self._url = url
        self.loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.closing = False
        self.engine = engine
        self.clock = clock or SYSTEM
        self.storage = RetryingStorage(engine, clock)
        self._validator = validator
        self.claims = claims
        self._ended = EndedJobs(on_ended)
        self._on_enqueued = on_enqueued
        self.waiting_claims = WaitingClaims()
        self._background: set[asyncio.Task[Any]] = set()
        self._prepare_batchers()
        self.worker_registry = WorkerRegistry(self.storage, self.clock)
        self.schedules = Schedules(
            self.storage, validator, self.worker_registry, self.clock, self._report_enqueued
        )
        self.history = History(self.storage)
        self.limits = Limits(self.storage)
        dead_after = to_micros(config.dead_after, "dead_after") / SECOND
        self.election = LeaderElection(
            self.storage, self.clock, dead_after, self.worker_registry.count_waiting
        )
        engine.signals.waiting = self.election.waiting
        self._prepare_duties(config)

    def _prepare_batchers(self) -> None:
        timeout = self.engine.timeout
        # A job with a dedup key may have to wait for another client's lock. Such jobs have their own batcher,
        # so that other jobs do not wait.
        self._inserts = CallBatcher(self._insert, timeout=timeout, weigh=insertions_weight)
        self._keyed_inserts = CallBatcher(self._insert, timeout=timeout, weigh=insertions_weight)
        self._claim_requests: CallBatcher[ClaimRequest, list[Job]] = CallBatcher(
            self._claim,
            timeout=timeout,
            weigh=lambda request: (request.limit, 0),
            undelivered=self._give_back,
        )
        self._settlements = CallBatcher(self._settle, timeout=timeout, weigh=ops_weight)
        self._keyed_settlements = CallBatcher(self._settle, timeout=timeout, weigh=ops_weight)
        self._renewals: CallBatcher[Renewal, Renewed] = CallBatcher(self.renew_all, timeout=timeout)
        self._cancels: CallBatcher[bytes, CancelOutcome] = CallBatcher(self.cancel_all, timeout=timeout)
        self._reads: CallBatcher[bytes, Job | None] = CallBatcher(self._get, timeout=timeout)
        self._batchers: tuple[CallBatcher[Any, Any], ...] = (
            self._inserts, self._keyed_inserts, self._claim_requests, self._settlements,
            self._keyed_settlements, self._renewals, self._cancels, self._reads,
        )  # fmt: skip
        self.claim = self._claim_requests.submit
        self.renew = self._renewals.submit
        self.cancel = self._cancels.submit
        self.get = self._reads.submit

    def _prepare_duties(self, config: BrokerConfig) -> None:
        def seconds(interval: Duration, name: str = "interval") -> float:
            return to_micros(interval, name) / SECOND

        storage, ended = self.storage, self._ended
        self.lead = Lead(self.election, self.engine.signals)
        self.promote = Promote(storage, ended, seconds(config.promote_interval))
        longest_lease = max(seconds(queue.lease) for queue in (config.default, *config.queues.values()))
        self.reap = Reap(storage, ended, seconds(config.reap_interval), self.clock, longest_lease)
        self.reclaim = Reclaim(storage, self.worker_registry, ended, seconds(config.dead_after, "dead_after"))
        self.sweep = Sweep(storage, seconds(config.sweep_interval))
        self.watch_cancels = WatchCancels(storage, self.claims)
        self._watch = self._service(self.watch_cancels)
        self._services: list[Service] = []

    def _service(self, duty: Duty) -> Service:
        return Service(duty, self.engine.signals, self.clock)

    def start_duties(self) -> None:
        if not self._services:
            led: list[Duty] = [
                self.promote, self.reap, self.reclaim, self.sweep, Periodic("sample", self.history.sample),
                Periodic("recur", self.schedules.fire, documents_topic("schedule")),
                Rewake(self.storage, self.election),
            ]  # fmt: skip
            self._services = [self._service(Led(duty, self.election)) for duty in led]
            if not self.election.alone:
                self._services.insert(0, self._service(self.lead))
            for service in self._services:
                service.start()

    async def stop_duties(self) -> None:
        services, self._services = self._services, []
        for service in services:
            await service.stop()
        await self.election.give_up()

    # Open and closed.

    def check_here(self) -> None:
        """Raise ``Closed`` unless this is the session's process and event loop."""
        if self.pid != process.pid:
            raise Closed(
                f"the broker on {self._url!r} was opened by process {self.pid} and this is its child "
                f"{process.pid}: open a broker of its own here"
            )
        if self.loop is not asyncio.get_running_loop():
            raise Closed(
                f"the broker on {self._url!r} was opened on another event loop: use it there, "
                "or open a broker of its own here"
            )

    async def flush(self) -> None:
        """Refuse new calls, end the waits, stop the duties, and commit the pending writes."""
        self.closing = True
        for service in (self._watch, *self._services):
            service.cancel()  # Before the wake-up below, which would run each duty once more.
        self.engine.signals.publish_all()
        await self._watch.stop()
        await self.stop_duties()
        for batcher in self._batchers:
            await batcher.drain()
        await self.release_undelivered()

    async def release_undelivered(self) -> None:
        """Wait until the claims under way have ended, and the jobs of cancelled callers are released."""
        await self._claim_requests.drain()
        while self._background:
            await asyncio.wait(self._background)

    # Enqueue, claim and settle.

    def enqueue(self, unit: Unit) -> Awaitable[list[Enqueued]]:
        """Store the jobs, all or none."""
        for job in unit:
            if job.dedup_key is not None:
                return self._keyed_inserts.submit(unit)
        return self._inserts.submit(unit)

    def settle(self, ops: Ops) -> Awaitable[list[JobState | None]]:
        """Settle the claims in one commit. Return the new states, None for a lost claim."""
        for op in ops:
            if op.insert and any(job.dedup_key is not None for job in op.insert):
                return self._keyed_settlements.submit(ops)
        return self._settlements.submit(ops)

    async def settle_many(self, ops: Ops) -> list[JobState | None]:
        """Settle the claims in one commit, or in several if they are larger than ``BATCH_BYTES``.

        If one of these fails, or the caller is cancelled, the replies of the earlier ones are kept for a
        retry.
        """
        if ops_weight(ops)[1] <= BATCH_BYTES:
            return await self.settle(ops)
        states: list[JobState | None] = []
        try:
            for part in split_ops(ops):
                states += await self.settle(part)
        except BaseException:
            self.storage.keep_replies(ops[: len(states)], states)
            raise
        return states

    async def claim_waiting(
        self,
        request: ClaimRequest,
        topics: Sequence[Topic],
        seconds: float,
        refreshed: Callable[[], Awaitable[ClaimRequest]] | None = None,
    ) -> list[Job]:
        """Claim, and claim again after each signal, until there is a job or the time is over.

        ``refreshed`` returns the request of each claim, where the queues may change meanwhile.
        """
        deadline = self.clock.elapsed() + seconds
        waited = False
        with self.engine.signals.listen(topics) as event:
            waiting = WaitingClaim(event, lambda job: self.claims.hold((job,)), self._give_back)
            if refreshed is None and len(request.queues) == 1:
                request = replace(request, waiting=waiting)
            try:
                while True:
                    event.clear()
                    waiting.is_last = self.clock.elapsed() >= deadline
                    if refreshed is not None:
                        request = await refreshed()
                    if request.queues and request.limit:
                        jobs = await self.claim(request)
                    else:
                        jobs = []
                        await self._release_lost_claims()
                    if waited and len(jobs) == request.limit:
                        self._wake_others(request)
                    jobs = waiting.take(jobs, request.limit)
                    left = deadline - self.clock.elapsed()
                    if jobs or waiting.is_last or (left <= 0 and request.waiting is None):
                        return jobs
                    if left <= 0:
                        continue  # The time ended during the claim, which may have registered this one.
                    waited = True
                    await self.waiting_claims.wait(waiting, request, self.clock, left)
                    if jobs := waiting.take([], request.limit):
                        return jobs
                    if self.closing:
                        raise not_open(self._url)
            finally:
                waiting.close()

    def _wake_others(self, request: ClaimRequest) -> None:
        """Wake claims of other processes, if few were woken: this one is full, and may have left jobs."""
        queues = [queue for queue, _ in request.queues if self.election.waiting(queue) > FEW]
        if queues:
            self.engine.wake_others(queues)

    async def wait(self, key: bytes, seconds: float | None) -> Waited:
        """Wait until the job has finished or the time is over. Read it again after each signal."""
        deadline = None if seconds is None else self.clock.elapsed() + seconds
        first: Job | None = None
        with self.engine.signals.listen([job_topic(key)]) as event:
            while True:
                event.clear()
                job = await self.get(key)
                if first is None:
                    if job is None:
                        return Waited("not_found")
                    first = job
                elif job is None or job.enqueued_us > first.enqueued_us:
                    return Waited("completed")  # It is not kept. A new job may have its id.
                if job.state.finished:
                    return Waited("completed", job)
                left = None if deadline is None else deadline - self.clock.elapsed()
                if left is not None and left <= 0:
                    return Waited("timed_out", job)
                await self.clock.wait(event, left)
                if self.closing:
                    raise not_open(self._url)

    # The commits of the batchers.

    async def _insert(self, units: list[Unit]) -> list[list[Enqueued]]:
        jobs = list(chain.from_iterable(units))
        if self.waiting_claims.by_queue and (claims := self.waiting_claims.begin_handoff(jobs)):
            enqueued = await self._insert_and_claim(jobs, claims)
        else:
            enqueued = await self.storage.write(partial(self.engine.insert, jobs))
        if self._on_enqueued is not None:
            self._report_enqueued([job for job, each in zip(jobs, enqueued, strict=True) if each.created])
        return _split(enqueued, units)

    async def _insert_and_claim(self, jobs: list[Insertion], claims: list[WaitingClaim]) -> list[Enqueued]:
        requests = [claim.request for claim in claims if claim.request is not None]
        claimed: list[list[Job]] = [[] for _ in claims]
        checks = self.claims.checks
        try:
            enqueued, claimed = await self.storage.write(
                partial(self.engine.insert_and_claim, jobs, requests)
            )
        finally:
            for claim, found in zip(claims, claimed, strict=True):
                self._hold(found, checks)
                self.waiting_claims.end_handoff(claim, found)
            self.report_ended()
        return enqueued

    async def _claim(self, requests: list[ClaimRequest]) -> list[list[Job]]:
        self._watch.start()  # A broker without claims needs no cancel requests.
        checks = self.claims.checks
        await self._release_lost_claims()
        claimed = await self.storage.claim(requests)
        self.report_ended()
        for jobs in claimed:
            self._hold(jobs, checks)
        return claimed

    async def _release_lost_claims(self) -> None:
        """Release the jobs of earlier claims whose reply was lost, so that the attempts do not count."""
        if self.storage.unconfirmed_claims and (lost := await self.storage.lost_claims()):
            await self._release(lost)

    def report_ended(self) -> None:
        """Report the jobs that calls of the engine have ended besides their replies."""
        ended = self.engine.ended
        if ended:
            self._ended.report([ended.popleft() for _ in range(len(ended))])

    def _report_enqueued(self, jobs: Sequence[Insertion]) -> None:
        """Report the jobs that a call stored. Those that it skipped are left out."""
        skipped = self.engine.skipped
        if skipped:
            stored = [job for job in jobs if job.key not in skipped]
            skipped.difference_update(job.key for job in jobs)
            jobs = stored
        if jobs and self._on_enqueued is not None:
            try:
                self._on_enqueued(jobs)
            except Exception:
                _log.exception("the callback %r failed on %d new jobs", self._on_enqueued, len(jobs))

    def _hold(self, jobs: list[Job], checks: int) -> None:
        """Watch new claims. Read the cancel requests again if a read ended while the reply was under way."""
        self.claims.hold(jobs)
        if jobs and self.claims.checks != checks:
            self.engine.signals.publish([CANCEL])

    async def _settle(self, units: list[Ops]) -> list[list[JobState | None]]:
        ops = list(chain.from_iterable(units))
        states = await self.storage.settle(ops)
        if self._on_enqueued is not None or self.engine.skipped:
            for op, state in zip(ops, states, strict=True):
                if op.insert and state is not None:
                    self._report_enqueued(op.insert)
        return _split(states, units)

    async def renew_all(self, renewals: list[Renewal]) -> list[Renewed]:
        return await self.storage.write(partial(self.engine.renew, renewals))

    async def cancel_all(self, keys: list[bytes]) -> list[CancelOutcome]:
        """Cancel jobs. The tokens of claims that this broker holds have fired when this returns."""
        outcomes = await self.storage.write(partial(self.engine.cancel, keys))
        self.report_ended()
        requested = [
            key for key, outcome in zip(keys, outcomes, strict=True) if outcome is CancelOutcome.REQUESTED
        ]
        if self.claims.holds_any(requested):
            with suppress(EngineUnavailable):  # The signal of the cancel repeats the read.
                await self.watch_cancels.run_once()
        return outcomes

    async def _get(self, keys: list[bytes]) -> Sequence[Job | None]:
        return await self.storage.read(partial(self.engine.get, keys))

    def _give_back(self, jobs: list[Job]) -> None:
        """Release claims whose caller was cancelled before it got them."""
        if jobs:
            task = asyncio.ensure_future(self._release(jobs))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _release(self, jobs: list[Job]) -> None:
        ops = tuple(
            SettleOp(job.key, job.claim, Transition.RELEASE, self.engine.retention.of(job.queue))
            for job in jobs
        )
        try:
            await self.settle(ops)
        except DayjobError as error:
            _log.warning(
                "%d undelivered claims could not be released and end with their leases: %s", len(ops), error
            )


class WaitingClaims:
    """The claims that wait in this process, by queue.

    A job reaches a waiting claim in three ways. A signal wakes the claim, and it claims again. The storage
    hands a job off to it, through ``ClaimRequest.waiting``. An insert in this process claims for it, through
    ``insert_and_claim``, so that the claim has the job after one call of the engine instead of two.
    """

    def __init__(self) -> None:
        self.by_queue: dict[str, dict[WaitingClaim, None]] = {}

    async def wait(self, claim: WaitingClaim, request: ClaimRequest, clock: Clock, seconds: float) -> None:
        """Wait for the claim's event or the time, and for the end of a hand-off that is under way."""
        claim.request = request
        for queue, _ in request.queues:
            self.by_queue.setdefault(queue, {})[claim] = None
        try:
            await clock.wait(claim.event, seconds)
            if claim.handoff is not None:
                await asyncio.shield(claim.handoff)
        finally:
            self._remove(claim)

    def begin_handoff(self, jobs: Iterable[Insertion]) -> list[WaitingClaim]:
        """Return the waiting claims that can claim these jobs. ``end_handoff`` must follow for each."""
        queues = {job.queue for job in jobs if job.delay is None and job.run_at is None}
        claims = list(dict.fromkeys(claim for queue in queues for claim in self.by_queue.get(queue, ())))
        for claim in claims:
            self._remove(claim)
            claim.handoff = asyncio.get_running_loop().create_future()
        return claims

    @staticmethod
    def end_handoff(claim: WaitingClaim, jobs: Sequence[Job]) -> None:
        for job in jobs:
            claim.deliver(job)
        assert claim.handoff is not None
        claim.handoff.set_result(None)
        claim.handoff = None
        claim.event.set()

    def _remove(self, claim: WaitingClaim) -> None:
        assert claim.request is not None
        for queue, _ in claim.request.queues:
            waiting = self.by_queue.get(queue)
            if waiting is not None:
                waiting.pop(claim, None)
                if not waiting:
                    del self.by_queue[queue]


def _split(replies: list[Reply], units: Sequence[Sequence[object]]) -> list[list[Reply]]:
    if len(units) == 1:
        return [replies]
    each = iter(replies)
    return [list(islice(each, len(unit))) for unit in units]


def not_open(url: str) -> Closed:
    return Closed(f"the broker on {url!r} is not open: use 'async with Broker(...)' or open()")
