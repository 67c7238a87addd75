"""What every part of a broker stands on: the engine, open and closed, the groups, and the duties."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, islice
from typing import Any, Self, TypeVar

from dayjob.broker.batcher import Batcher
from dayjob.broker.held_claims import HeldClaims
from dayjob.broker.history import History
from dayjob.broker.leader_election import LeaderElection
from dayjob.broker.offers import Offer, Offers
from dayjob.broker.policy import Policies
from dayjob.broker.schedules import Schedules
from dayjob.broker.storage import Storage
from dayjob.broker.validation import Validator
from dayjob.broker.worker_registry import WorkerRegistry
from dayjob.duties import (
    Duty,
    Lead,
    Led,
    Promote,
    Reap,
    Reclaim,
    Recur,
    Sample,
    Service,
    Sweep,
    WatchCancels,
)
from dayjob.engines.base import (
    Capabilities,
    ClaimRequest,
    Engine,
    Insertion,
    Renewal,
    Renewed,
    SettleOp,
    Token,
)
from dayjob.engines.registry import create_engine, without_password
from dayjob.errors import Closed, ConfigError, DayjobError
from dayjob.model.config import BrokerConfig
from dayjob.model.durations import SECOND, to_micros
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState
from dayjob.model.lifecycle import Transition
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.signals import CANCEL, LEAD

_log = logging.getLogger("dayjob.broker")

Reply = TypeVar("Reply")

CHORE_BATCH = 1000
"""How many jobs a duty changes at most in one commit."""

FIRST_BATCH = 100
"""How many at least, if there are as many, and how many to begin with."""

TURN = 0.004
"""Seconds that such a commit should take, so that claims and settlements get their turn in between."""

SWEEP_REST = 3
"""How many times as long as it works a sweep rests, which has time."""

_SHORTEST_REST = 0.001


class Core:
    """Opens and closes; holds the engine and the groups that share its round trips."""

    def __init__(self, url: str, *, config: BrokerConfig | None = None, clock: Clock | None = None) -> None:
        if config is not None and not isinstance(config, BrokerConfig):
            raise ConfigError(f"config={config!r} is a {type(config).__name__}: pass a BrokerConfig")
        self.config = config or BrokerConfig()
        self._injected_clock = clock
        self._clock = clock or SYSTEM
        self._engine: Engine = create_engine(url, self._clock)
        self._url = url
        self._shown = without_password(url)
        self._policies = Policies(self.config)
        self._validator = Validator(self._policies, self.config.max_payload)
        self._claims = HeldClaims(lambda: self._storage.read(self._engine.cancel_requests))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._opening = asyncio.Lock()
        self._closing = False
        self._prepare()

    def _prepare(self) -> None:
        """What belongs to the event loop: made anew for each opening."""
        self._storage = Storage(self._engine, self._injected_clock)
        self._offers = Offers(self._give_back)
        self._background: set[asyncio.Task[Any]] = set()
        self._inserting: Batcher[tuple[Insertion, ...], list[Enqueued]] = Batcher(self._insert, weigh=len)
        self._inserting_keyed: Batcher[tuple[Insertion, ...], list[Enqueued]] = Batcher(
            self._insert, weigh=len
        )
        self._claiming: Batcher[ClaimRequest, list[Job]] = Batcher(
            self._claim, weigh=lambda request: request.limit, undelivered=self._give_back
        )
        self._settling: Batcher[tuple[SettleOp, ...], list[JobState | None]] = Batcher(
            self._settle, weigh=_weight
        )
        self._renewing: Batcher[Renewal, Renewed] = Batcher(self._renew)
        self._cancelling: Batcher[bytes, CancelOutcome] = Batcher(self._cancel)
        self._reading: Batcher[bytes, Job | None] = Batcher(self._read)
        self._groups: tuple[Batcher[Any, Any], ...] = (
            self._inserting, self._inserting_keyed, self._claiming, self._settling, self._renewing,
            self._cancelling, self._reading,
        )  # fmt: skip
        self._worker_registry = WorkerRegistry(self._storage)
        self._schedules = Schedules(self._storage, self._validator, self._worker_registry, self._clock)
        self._history = History(self._storage)
        self._leader_election = LeaderElection(self._storage, self._clock)
        self._watch = self._service(WatchCancels(self))
        self._duties: list[Service] = []

    def _service(self, duty: Duty) -> Service:
        return Service(duty, self._engine.signals, self._clock)

    def start_duties(self) -> None:
        """Run the duties in this process, whatever the configuration; they end with ``close``."""
        if not self._duties:
            config, orphans = self.config, self._engine.capabilities.knows_orphans
            led: list[Duty] = [
                Promote(self, to_micros(config.promote_interval, "interval") / SECOND),
                Reap(self, to_micros(config.reap_interval, "interval") / SECOND, orphans),
                Reclaim(self, to_micros(config.dead_after, "dead_after") / SECOND, self._clock),
                Recur(self),
                Sample(self),
                Sweep(self, to_micros(config.sweep_interval, "interval") / SECOND),
            ]
            self._duties = [self._service(Led(duty, self)) for duty in led]
            if not self._leader_election.alone:
                self._duties.insert(0, self._service(Lead(self)))
            for service in self._duties:
                service.start()

    async def stop_duties(self) -> None:
        duties, self._duties = self._duties, []
        for service in duties:
            await service.stop()
        await self._leader_election.give_up()

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do beyond the contract."""
        return self._engine.capabilities

    @property
    def is_open(self) -> bool:
        return self._loop is not None and not self._closing and self._pid == os.getpid()

    # Open and closed.

    async def open(self) -> Self:
        """Connect and start the duties; opening an open broker does nothing."""
        async with self._opening:
            if self._loop is None:
                self._closing = False
                self._prepare()
                await self._engine.open()
                self._loop = asyncio.get_running_loop()
                self._pid = os.getpid()
                if self.config.duties:
                    self.start_duties()
            else:
                self._check_open()
        return self

    async def close(self) -> None:
        """Stop the duties, store what was submitted, let go of the storage. Claims are not released."""
        async with self._opening:
            if self._loop is None:
                return
            if self._pid != os.getpid():
                self._loop = None
                return
            if not self._loop.is_closed():
                self._check_here()
                self._closing = True
                await self._flush()
            try:
                await self._engine.close()
            finally:
                self._loop = None

    async def _flush(self) -> None:
        """Wake whoever waits, so that it sees the end; stop the duties; store what was submitted."""
        self._engine.signals.publish_all()
        await self._watch.stop()
        await self.stop_duties()
        for group in self._groups:
            await group.drain()
        while self._background:
            await asyncio.wait(self._background)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._loop is None or self._closing:
            raise Closed(f"the broker on {self._shown!r} is not open: use 'async with Broker(...)' or open()")
        self._check_here()

    def _check_here(self) -> None:
        if self._pid != os.getpid():
            raise Closed(
                f"the broker on {self._shown!r} was opened by process {self._pid} and this is its child "
                f"{os.getpid()}: open a broker of its own here"
            )
        if self._loop is not asyncio.get_running_loop():
            raise Closed(
                f"the broker on {self._shown!r} was opened on another event loop: use it there, "
                "or open a broker of its own here"
            )

    def _now(self) -> int | None:
        """Return the injected time. None leaves the time to the engine's own clock."""
        return self._storage.now()

    async def _write(self, call: Callable[[Token], Awaitable[Reply]]) -> Reply:
        return await self._storage.write(call)

    # What the groups commit.

    async def _enqueue(self, unit: tuple[Insertion, ...]) -> list[Enqueued]:
        """Store an atomic batch. What has dedup keys may have to wait for others, and goes by itself."""
        keyed = any(job.dedup_key is not None for job in unit)
        return await (self._inserting_keyed if keyed else self._inserting).submit(unit)

    async def _insert(self, units: list[tuple[Insertion, ...]]) -> list[list[Enqueued]]:
        jobs = [job for unit in units for job in unit]
        offers = self._offers.take(units)
        if offers:
            answers = iter(await self._insert_and_claim(jobs, offers))
        else:
            answers = iter(
                await self._write(lambda token: self._engine.insert(jobs, self._now(), token=token))
            )
        return [[next(answers) for _ in unit] for unit in units]

    async def _insert_and_claim(self, jobs: list[Insertion], offers: list[Offer]) -> list[Enqueued]:
        """Store the jobs and serve the claims that wait for them, in one commit."""
        claimed: list[list[Job]] = [[] for _ in offers]
        requests = [offer.request for offer in offers]
        checks = self._claims.checks
        try:
            enqueued, claimed = await self._write(
                lambda token: self._engine.insert_and_claim(jobs, requests, self._now(), token=token)
            )
        finally:
            for offer, taken in zip(offers, claimed, strict=True):
                self._hold(taken, checks)
                self._offers.serve(offer, taken)
        return enqueued

    async def _claim(self, requests: list[ClaimRequest]) -> list[list[Job]]:
        self._watch.start()  # Whoever never claims need not hear of cancels.
        checks = self._claims.checks
        claimed = await self._write(lambda token: self._engine.claim(requests, self._now(), token=token))
        for jobs in claimed:
            self._hold(jobs, checks)
        return claimed

    def _hold(self, jobs: list[Job], checks: int) -> None:
        """Watch over new claims; look for cancels again if a look ended while they were on their way."""
        self._claims.hold(jobs)
        if jobs and self._claims.checks != checks:
            self._engine.signals.publish([CANCEL])

    async def _settle(self, units: list[tuple[SettleOp, ...]]) -> list[list[JobState | None]]:
        ops = list(chain.from_iterable(units))
        states = iter(await self._storage.settle(ops))
        return [list(islice(states, len(unit))) for unit in units]

    async def _renew(self, renewals: list[Renewal]) -> list[Renewed]:
        return await self._write(lambda token: self._engine.renew(renewals, self._now(), token=token))

    async def _cancel(self, keys: list[bytes]) -> list[CancelOutcome]:
        return await self._write(
            lambda token: self._engine.cancel(keys, self._policies.retention, self._now(), token=token)
        )

    async def _read(self, keys: list[bytes]) -> Sequence[Job | None]:
        return await self._storage.read(lambda: self._engine.get(keys))

    def _give_back(self, jobs: list[Job]) -> None:
        """Release claims whose caller was cancelled before it got them."""
        if jobs:
            ops = tuple(
                SettleOp(job.key, job.epoch, Transition.RELEASE, self._validator.retention(job.queue))
                for job in jobs
            )
            task = asyncio.ensure_future(self._release(ops))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _release(self, ops: tuple[SettleOp, ...]) -> None:
        try:
            await self._settling.submit(ops)
        except DayjobError as error:
            _log.warning("%d claims of a cancelled caller wait for their leases: %s", len(ops), error)

    # What the duties do.

    async def promote(self) -> int:
        """Make due jobs pending and end those that expired before they started; how many became pending."""
        self._check_open()
        total = 0

        async def promote(limit: int) -> int:
            nonlocal total
            due, expired = await self._write(
                lambda token: self._engine.promote(limit, self._policies.retention, self._now(), token=token)
            )
            total += due
            return max(due, expired)

        await _repeat(promote)
        return total

    async def next_due(self) -> int | None:
        """Microseconds until the next job falls due or expires; None if there is none."""
        self._check_open()
        return await self._storage.read(lambda: self._engine.next_due(self._now()))

    async def reap(self) -> int:
        """End expired and orphaned claims: their jobs run again or are dead; how many."""
        self._check_open()
        return await _repeat(
            lambda limit: self._write(
                lambda token: self._engine.reap(limit, self._policies.retention, self._now(), token=token)
            )
        )

    async def reclaim(self, *, trusting: bool = True) -> int:
        """Take back the jobs of workers that are gone; how many.

        Not ``trusting``, it takes no silence for an end: after an outage, all have been silent.
        """
        self._check_open()
        dead = await self._worker_registry.mark_dead(trusting)
        total = await self.reclaim_from([seen.member.id for seen in dead])
        for seen in dead:
            await self._worker_registry.remove(seen)
        return total

    async def reclaim_from(self, workers: Sequence[str]) -> int:
        """End the claims of these workers, by their ids, as if their leases had expired; how many."""
        self._check_open()
        if not workers:
            return 0
        return await _repeat(
            lambda limit: self._write(
                lambda token: self._engine.reclaim(
                    workers, limit, self._policies.retention, self._now(), token=token
                )
            )
        )

    async def recur(self) -> int:
        """Fire the schedules that are due; microseconds until the next look is wanted."""
        self._check_open()
        return await self._schedules.fire()

    async def sample(self) -> int:
        """Note the counters for the throughput history; microseconds until the next sample is due."""
        self._check_open()
        return await self._history.sample()

    async def lead(self) -> float:
        """Seek to be the one process that does the fleet's duties; seconds until that is wanted again."""
        self._check_open()
        led = self._leader_election.leads
        wait = await self._leader_election.seek()
        if self._leader_election.leads and not led:
            self._engine.signals.publish([LEAD])
        return wait

    @property
    def leads(self) -> bool:
        """Whether the fleet's duties are done here."""
        return self._leader_election.leads

    async def sweep(self) -> int:
        """Remove finished jobs whose retention is over; how many."""
        self._check_open()
        return await _repeat(
            lambda limit: self._write(lambda token: self._engine.sweep(limit, self._now(), token=token)),
            SWEEP_REST,
        )

    async def check_cancels(self) -> None:
        """Fire the cancel tokens of this process's claims for which a cancel was requested."""
        self._check_open()
        await self._claims.check()


async def _repeat(chore: Callable[[int], Awaitable[int]], rest: int = 1) -> int:
    """Do a chore in short commits while there is any of it; how many jobs.

    After each it rests for as long as that took, or so many times as long.
    """
    total, limit = 0, FIRST_BATCH
    while True:
        begun = SYSTEM.elapsed()
        done = await chore(limit)
        took = SYSTEM.elapsed() - begun
        total += done
        if done < limit:
            return total
        fitting = round(limit * TURN / max(took, TURN / 2))  # At most twice as many as before.
        limit = min(max(fitting, FIRST_BATCH), CHORE_BATCH)
        await SYSTEM.wait(asyncio.Event(), max(rest * took, _SHORTEST_REST))


def _weight(ops: tuple[SettleOp, ...]) -> int:
    return sum(1 + len(op.insert) for op in ops)
