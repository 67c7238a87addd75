"""The Redis engine's face to the broker: each verb that changes something is one call of its script."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from dayjob.engines.base import (
    Capabilities,
    ClaimRequest,
    Diagnostic,
    Document,
    DocumentWrite,
    Insertion,
    JobQuery,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    RetentionByQueue,
    SettleOp,
    Token,
    WaitingClaim,
)
from dayjob.engines.doubts import Doubts, Named, named
from dayjob.engines.redis import arguments, documents, listing, record
from dayjob.engines.redis.arguments import Arguments
from dayjob.engines.redis.diagnosis import diagnose
from dayjob.engines.redis.lanes import Lanes, Ticket
from dayjob.engines.redis.link import Link
from dayjob.engines.redis.news import News
from dayjob.engines.redis.opening import prepare
from dayjob.engines.redis.place import Place
from dayjob.engines.redis.record import CODES, NONE, STATES, TIME
from dayjob.engines.redis.seats import Seats
from dayjob.errors import Closed, ConfigError, DayjobError, EngineUnavailable
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState, QueueStats, id_text
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.signals import Signals

_log = logging.getLogger("dayjob.redis")

_AFTER_THE_START = 0.002
"""Seconds after which to see to the answer of a confirmation: the job goes first."""

_PARTING = 0.5
"""Seconds to spend on confirmations, and on giving seats up, when the engine is closed."""

_EXAMINED = 250
"""About how many running jobs one call of ``reclaim`` looks at: each with its payload."""

_OUTCOMES = (CancelOutcome.NOT_FOUND, CancelOutcome.REMOVED, CancelOutcome.REQUESTED)


class Batch(Struct, frozen=True, eq=False):
    """Verdicts as they were sent."""

    ticket: Ticket
    ops: Sequence[SettleOp]
    now: int | None
    arguments: Arguments


class RedisEngine:
    """Jobs on a Redis or Valkey server; see ``engines.base.Engine`` for the verbs."""

    capabilities = Capabilities(
        persistent=True, multi_process=True, transactional_enqueue=False, knows_orphans=False
    )

    def __init__(self, place: Place, clock: Clock) -> None:
        self.signals = Signals()
        self._place = place
        self.timeout = place.patience
        self._keys = place.keys
        self._opened: tuple[Link, News] | None = None
        self._lanes = Lanes(place.keys)
        self._doubts = Doubts[Batch]()
        self._seats = Seats(self._confirm)
        self._confirming: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        link = Link(self._place)
        try:
            await prepare(link)
        except BaseException:
            await link.close()
            raise
        link.opening = False
        self._lanes = Lanes(self._keys)
        self._seats = Seats(self._confirm)
        news = News(link, self.signals, self._keys.hand_overs(self._seats.client), self._seats.hear)
        self.signals.on_listen = news.notice
        self._opened = (link, news)

    async def close(self) -> None:
        if self._opened is not None:
            link, news = self._opened
            self._opened = None
            await news.close()
            if self._confirming:
                await asyncio.wait(self._confirming, timeout=_PARTING)
            if seats := self._seats.close():
                with suppress(DayjobError):
                    await link.ask(("ZREM", self._keys.seats, *seats), patience=_PARTING)
            await link.close()

    @property
    def _link(self) -> Link:
        if self._opened is None:
            raise Closed(f"{self._place.shown}: the engine is not open")
        return self._opened[0]

    async def _listen(self, *, for_claims: bool = False) -> None:
        """To be awaited before a look after which somebody may wait for a change."""
        if self._opened is None:
            raise Closed(f"{self._place.shown}: the engine is not open")
        await self._opened[1].listen(for_claims=for_claims)

    async def _run(self, verb: str, now: int | None, *given: Any) -> Any:
        """Call the verb's script, again if need be, so that it acts once."""
        with self._lanes.ticket() as ticket:
            return await self._send(ticket, verb, now, given)

    async def _send(self, ticket: Ticket, verb: str, now: int | None, given: Sequence[Any]) -> Any:
        head = ("" if now is None else now, self._keys.news, self._keys.ends, ticket.token)
        return await self._link.run(verb, (*self._keys.fixed, ticket.answer), (*head, *given))

    # In.

    async def insert(
        self, jobs: Sequence[Insertion], now: int | None = None, token: Token | None = None
    ) -> list[Enqueued]:
        return _enqueued(jobs, await self._run("insert", now, *arguments.jobs(jobs)))

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        raise ConfigError(
            f"connection={connection!r}: Redis has no transactions to join; "
            "leave connection out, or use sqlite:///"
        )

    # Out.

    async def claim(
        self, requests: Sequence[ClaimRequest], now: int | None = None, token: Token | None = None
    ) -> list[list[Job]]:
        await self._listen(for_claims=True)
        seats = self._seats
        left = seats.before(requests)
        asked = arguments.requests(requests, None if now is not None else seats.client)
        answers = await self._run("claim", now, len(left), *left, *asked)
        found = [seats.after(request, answer) for request, answer in zip(requests, answers, strict=True)]
        return await self._claimed(requests, found, now)

    async def insert_and_claim(
        self,
        jobs: Sequence[Insertion],
        requests: Sequence[ClaimRequest],
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        enqueued, answers = await self._run(
            "insert_and_claim", now, *arguments.jobs(jobs), *arguments.requests(requests)
        )
        return _enqueued(jobs, enqueued), await self._claimed(requests, answers, now)

    async def _claimed(
        self, requests: Sequence[ClaimRequest], answers: list[list[bytes]], now: int | None
    ) -> list[list[Job]]:
        """The jobs of each request. What can't be decoded is set aside, and others are claimed instead."""
        claimed: list[list[Job]] = []
        for request, answer in zip(requests, answers, strict=True):
            jobs: list[Job] = []
            corrupt: Arguments = []
            keys: list[bytes] = []
            for key, blob in zip(answer[::2], answer[1::2], strict=True):
                try:
                    jobs.append(record.claimed_job(key, blob))
                except record.Corrupt as error:
                    keys.append(key)
                    corrupt += (record.epoch_of(blob), str(error))
            claimed.append(jobs)
            if keys:
                await self._run("set_aside", now, arguments.ids(keys), *corrupt)
                again = ClaimRequest(request.queues, len(keys), request.worker)
                jobs += (await self.claim([again], now))[0]
        return claimed

    def _confirm(self, waiting: WaitingClaim, job: Job, doubted: bool) -> None:
        """Tell the server that a job that it sent has come, on the wire before the job can begin to run.

        If it is in doubt, only the answer says whether the claim still holds.
        """
        confirmed = self._link.begin(("ZREM", self._keys.handed, job.key + job.epoch.to_bytes(4)))
        if not doubted:
            waiting.deliver(job)
        task = asyncio.get_running_loop().create_task(self._confirmed(confirmed, waiting, job, doubted))
        self._confirming.add(task)
        task.add_done_callback(self._confirming.discard)

    async def _confirmed(
        self, confirmed: Coroutine[Any, Any, list[Any]], waiting: WaitingClaim, job: Job, doubted: bool
    ) -> None:
        if not doubted:
            await SYSTEM.wait(asyncio.Event(), _AFTER_THE_START)
        try:
            (held,) = await confirmed
        except DayjobError as error:
            _log.warning("a job that was handed over may be given to others: %s", error)
        else:
            if doubted and held:
                waiting.deliver(job)
            elif doubted:
                waiting.give_back([job])  # To no effect, unless the first answer was lost.

    async def settle(
        self, ops: Sequence[SettleOp], now: int | None = None, token: Token | None = None
    ) -> list[JobState | None]:
        known: dict[Named, JobState | None] = {}
        for batch in self._doubts.about(ops):
            answer = await self._send(batch.ticket, "settle", batch.now, batch.arguments)
            for op, state in zip(batch.ops, _states(answer), strict=True):
                known.setdefault(named(op), state)  # Of two on one claim, the first was applied.
            self._doubts.remove(batch)
            self._lanes.give_back(batch.ticket)
        new = [op for op in ops if named(op) not in known]
        states = iter(await self._settle(new, now) if new else [])
        return [known[name] if (name := named(op)) in known else next(states) for op in ops]

    async def _settle(self, ops: Sequence[SettleOp], now: int | None) -> list[JobState | None]:
        ticket = self._lanes.take()
        given = arguments.ops(ops)
        try:
            answer = await self._send(ticket, "settle", now, given)
        except EngineUnavailable:
            self._doubts.add(ops, Batch(ticket, ops, now, given))
            raise
        except BaseException:
            self._lanes.give_back(ticket)
            raise
        self._lanes.give_back(ticket)
        return _states(answer)

    async def renew(
        self, renewals: Sequence[Renewal], now: int | None = None, token: Token | None = None
    ) -> list[Renewed]:
        given: Arguments = [arguments.ids(renewal.key for renewal in renewals)]
        for renewal in renewals:
            given += (renewal.epoch, renewal.lease)
        answer = await self._run("renew", now, *given)
        renewed: list[Renewed] = []
        for start in range(0, len(answer), 9):
            lease = TIME.unpack_from(answer, start)[0]
            renewed.append(Renewed(None if lease == NONE else lease, answer[start + 8] == 1))
        return renewed

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        given: Arguments = [arguments.ids(report.key for report in reports)]
        for report in reports:
            given += (report.epoch, record.progress(report.fraction, report.message))
        await self._run("report", None, *given)

    # From outside the claim.

    async def cancel(
        self,
        keys: Sequence[bytes],
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> list[CancelOutcome]:
        answer = await self._run("cancel", now, arguments.ids(keys), *arguments.retention(retention))
        return [_OUTCOMES[code] for code in answer]

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        await self._listen()
        (keys,) = await self._link.ask(("SMEMBERS", self._keys.flagged))
        if not keys:
            return []
        (blobs,) = await self._link.ask(("HMGET", self._keys.jobs, *keys))
        return [
            (key, record.epoch_of(blob))
            for key, blob in zip(keys, blobs, strict=True)
            if record.asks_to_stop(blob)
        ]

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        await self._listen()
        return await listing.get(self._link, keys)

    async def find(self, query: JobQuery) -> list[Job]:
        return await listing.find(self._link, query)

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        return await listing.find_dead(self._link, queue, before, limit)

    async def requeue(
        self, keys: Sequence[bytes], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        return [code == 1 for code in await self._run("requeue", now, arguments.ids(keys))]

    async def requeue_dead(
        self, queue: str, limit: int, now: int | None = None, token: Token | None = None
    ) -> int:
        keys = await listing.finished_keys(self._link, JobState.DEAD, queue, None, limit)
        return sum(await self.requeue(keys, now)) if keys else 0

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        keys = await listing.finished_keys(self._link, JobState.DEAD, queue, None, limit)
        return await self.purge(keys)

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        return await self._drop(JobState.DEAD, "", keys, None)

    async def _drop(self, state: JobState, age: int | str, keys: Sequence[bytes], now: int | None) -> int:
        if not keys:
            return 0
        dropped: int = await self._run("drop", now, CODES[state], age, arguments.ids(keys))
        return dropped

    async def reschedule(
        self, changes: Sequence[Reschedule], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        given: Arguments = [arguments.ids(change.key for change in changes)]
        for change in changes:
            given.append(b"" if change.run_at is None else TIME.pack(change.run_at))
            given.append(b"" if change.priority is None else change.priority)
        return [code == 1 for code in await self._run("reschedule", now, *given)]

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        await self._listen()
        found = await listing.stats(self._link)
        return found if queues is None else {name: found[name] for name in sorted({*queues} & {*found})}

    async def position(self, key: bytes, limit: int) -> int:
        return await listing.position(self._link, key, limit)

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        (values,) = await self._link.ask(("HMGET", self._keys.kv, *keys))
        found: list[bytes | None] = values
        return found

    async def kv_write(
        self, writes: Sequence[tuple[bytes, bytes | None]], token: Token | None = None
    ) -> None:
        last = dict(writes)
        puts = [part for key, value in last.items() if value is not None for part in (key, value)]
        deletes = [key for key, value in last.items() if value is None]
        await self._run("kv_write", None, len(puts) // 2, *puts, len(deletes), *deletes)

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        await self._run("pause", None, queue, int(paused))

    async def paused(self) -> set[str]:
        (names,) = await self._link.ask(("SMEMBERS", self._keys.paused))
        return {name.decode() for name in names}

    async def diagnose(self) -> list[Diagnostic]:
        return await diagnose(self._link)

    # Duties.

    async def promote(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        promoted, expired = await self._run("promote", now, limit, *arguments.retention(retention))
        return promoted, expired

    async def next_due(self, now: int | None = None) -> int | None:
        await self._listen()
        first = (0, 0, "WITHSCORES")
        (seconds, micros), *ends = await self._link.ask(
            ("TIME",),
            ("ZRANGE", self._keys.due, *first),
            ("ZRANGE", self._keys.expiries, *first),
            ("ZRANGE", self._keys.handed, *first),
        )
        at = int(seconds) * 1_000_000 + int(micros) if now is None else now
        times = [int(float(end[1])) for end in ends if end]
        return max(min(times) - at, 0) if times else None

    async def reap(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> int:
        ended: int = await self._run("reap", now, limit, *arguments.retention(retention))
        return ended

    async def reclaim(
        self,
        workers: Sequence[str],
        limit: int,
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> int:
        given = (len(workers), *workers, *arguments.retention(retention))
        cursor, ended = b"0", 0
        while ended < limit:
            cursor, more = await self._run("reclaim", now, cursor, _EXAMINED, limit - ended, *given)
            ended += more
            if cursor == b"0":
                break
        return ended

    async def sweep(self, limit: int, now: int | None = None, token: Token | None = None) -> int:
        removed: int = await self._run("sweep", now, limit)
        return removed

    async def sweep_finished(
        self,
        state: JobState,
        age: int,
        after: bytes | None,
        limit: int,
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[int, bytes | None]:
        keys = await listing.finished_keys(self._link, state, None, after, limit)
        return await self._drop(state, age, keys, now), keys[-1] if len(keys) == limit else None

    # Notes.

    async def documents(self, kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        await self._listen()
        time, found = await documents.read(self._link, kind)
        return time if now is None else now, found

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        now: int | None = None,
        token: Token | None = None,
    ) -> bool:
        given = (int(announce), *arguments.documents(writes), *arguments.jobs(jobs))
        written: int = await self._run("write_notes", now, *given)
        return written == 1


def _enqueued(jobs: Sequence[Insertion], answer: bytes) -> list[Enqueued]:
    enqueued: list[Enqueued] = []
    at = 0
    for job in jobs:
        if answer[at]:
            enqueued.append(Enqueued(id_text(job.key), True))
            at += 1
        else:
            enqueued.append(Enqueued(id_text(answer[at + 1 : at + 17]), False))
            at += 17
    return enqueued


def _states(answer: bytes) -> list[JobState | None]:
    return [STATES[code] for code in answer]
