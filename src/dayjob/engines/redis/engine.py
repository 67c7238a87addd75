"""The Redis engine: each verb that writes is one call of its Lua script, and one try."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from struct import Struct as Layout
from typing import Any

from redis.exceptions import NoScriptError

from dayjob.engines.base import (
    BATCH,
    Capabilities,
    ClaimRequest,
    Diagnostic,
    DocumentWrite,
    Insertion,
    KvWrite,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    SettleOp,
    Token,
)
from dayjob.engines.record import Corrupt
from dayjob.engines.redis import arguments, record
from dayjob.engines.redis.arguments import Arguments
from dayjob.engines.redis.client import Client, Command
from dayjob.engines.redis.diagnosis import diagnose
from dayjob.engines.redis.handoffs import Handoffs
from dayjob.engines.redis.migration import prepare
from dayjob.engines.redis.queries import Queries
from dayjob.engines.redis.record import NONE, STATE_CODES, STATES, TIME
from dayjob.engines.redis.settings import RedisSettings
from dayjob.engines.redis.subscriber import Subscriber
from dayjob.engines.redis.waiting_claims import WaitingClaims
from dayjob.errors import Closed, ConfigError, DayjobError, QueueFull
from dayjob.model.job import CancelOutcome, EndedJob, Enqueued, Job, JobState, id_text
from dayjob.model.lifecycle import CANCELLED, REQUEUED
from dayjob.runtime.clock import Clock
from dayjob.runtime.ids import new_key

_log = logging.getLogger("dayjob.redis")

_CLOSING = 0.5
"""Seconds for acknowledgments, and for removing waiting claims, when the engine closes."""

_EXAMINED = 250
"""Approximate number of running jobs that one step of ``reclaim`` examines."""

_HANDOFFS_CHECKED = 1_000_000
"""Microseconds until unacknowledged hand-offs are looked for again, while claims wait for hand-offs."""

_CLAIM_BATCH = 256
"""The server executes one script at a time. A claim of this many jobs delays the settlements behind it by
some milliseconds, and its reply is read while the jobs of the claim before it run."""

_CLAIM = Layout("16s16s")
_OUTCOMES = (CancelOutcome.NOT_FOUND, CancelOutcome.REMOVED, CancelOutcome.REQUESTED)


class RedisEngine(Queries):
    """Jobs on a Redis or Valkey server; see ``engines.base.Engine`` for the verbs."""

    capabilities = Capabilities(
        persistent=True, multi_process=True, stores_replies=True, concurrent_commits=True,
        claim_batch=_CLAIM_BATCH,
    )  # fmt: skip

    def __init__(self, settings: RedisSettings, clock: Clock | None) -> None:
        super().__init__(settings.timeout)
        self._settings = settings
        self._clock = clock
        self._keys = settings.keys
        self._opened: tuple[Client, Subscriber] | None = None
        self._waiting_claims = WaitingClaims()
        self._background: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        client = Client(self._settings)
        try:
            await prepare(client)
        except BaseException:
            await client.close()
            raise
        client.opening = False
        self._waiting_claims = WaitingClaims()
        handoffs = Handoffs(client, self._waiting_claims, self._claimed, self._in_background)
        subscriber = Subscriber(client, self.signals, handoffs)
        self.signals.on_listen = subscriber.on_listen
        self._opened = (client, subscriber)

    async def close(self) -> None:
        if self._opened is not None:
            client, subscriber = self._opened
            self._opened = None
            await subscriber.close()
            if self._background:
                await asyncio.wait(self._background, timeout=_CLOSING)
            if members := self._waiting_claims.close():
                with suppress(DayjobError):
                    remove: Command = ("ZREM", self._keys.waiting_claims, *members)
                    await client.execute_retrying(remove, timeout=_CLOSING)
            await client.close()

    @property
    def _client(self) -> Client:
        if self._opened is None:
            raise Closed(f"{self._settings.shown}: the engine is not open")
        return self._opened[0]

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock.now()

    async def _listen(self, *, for_claims: bool = False) -> None:
        if self._opened is None:
            raise Closed(f"{self._settings.shown}: the engine is not open")
        await self._opened[1].listen(for_claims=for_claims)

    async def _run(
        self,
        token: Token | None,
        verb: str,
        *given: Any,
        step: int = 0,
        now: int | None = None,
        in_full: bool = False,
    ) -> Any:
        """Return the reply of the verb's script, which stores it with the token's number and the step.

        The slot of the token has the stored reply of its last write. A write without a token gets a new slot.
        ``now`` is the time to act at, if it is not that of the clock.
        """
        if token is None:
            token = _new_token()
        client = self._client
        head = client.script_head(self._now() if now is None else now, token.number, step, token.key)
        reply = self._keys.reply(token.client, token.slot)
        return await client.run(verb, reply, (*head, *given), in_full=in_full)

    # Insert.

    async def insert(self, jobs: Sequence[Insertion], token: Token | None = None) -> list[Enqueued]:
        in_full = False
        if self._clock is None and len(jobs) == 1 and arguments.is_plain(jobs[0]):
            token = token or _new_token()
            try:
                return _enqueued(jobs, await self._client.insert_plain(jobs[0], token))
            except NoScriptError:
                in_full = True
        given = arguments.jobs(jobs, bounded=True)
        return _enqueued(jobs, await self._run(token, "insert", *given, in_full=in_full))

    async def insert_tx(self, connection: Any, jobs: Sequence[Insertion]) -> list[Enqueued]:
        raise ConfigError(
            f"connection={connection!r}: Redis has no transactions to join; "
            "leave connection out, or use sqlite:///"
        )

    # Claim.

    async def claim(self, requests: Sequence[ClaimRequest], token: Token | None = None) -> list[list[Job]]:
        await self._listen(for_claims=True)
        waiting = self._waiting_claims
        removed = waiting.before_claim(requests)
        given = arguments.requests(requests, waiting.client if self._now() is None else None)
        replies = await self._run(token, "claim", len(removed), *removed, *given)
        found = [
            waiting.after_claim(request, reply) for request, reply in zip(requests, replies, strict=True)
        ]
        claimed = await self._claimed(requests, found)
        await waiting.acknowledged(requests)
        return claimed

    async def insert_and_claim(
        self, jobs: Sequence[Insertion], requests: Sequence[ClaimRequest], token: Token | None = None
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        enqueued, replies = await self._run(
            token, "insert_and_claim", *arguments.jobs(jobs, bounded=True), *arguments.requests(requests)
        )
        return _enqueued(jobs, enqueued), await self._claimed(requests, replies)

    def wake_others(self, queues: Sequence[str]) -> None:
        message = b"\0".join([b"", *map(str.encode, queues)])
        publish: Command = ("PUBLISH", self._keys.changes, message)
        _ = self._in_background(self._client.execute_retrying(publish, timeout=self.timeout))

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(_logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _claimed(self, requests: Sequence[ClaimRequest], replies: list[list[bytes]]) -> list[list[Job]]:
        """Return the jobs of each request. Quarantine those that can't be decoded, and claim others.

        If that fails, the broker repeats the call and gets the stored claims, without the quarantined ones.
        """
        claimed: list[list[Job]] = []
        for request, reply in zip(requests, replies, strict=True):
            jobs: list[Job] = []
            keys: list[bytes] = []
            errors: Arguments = []
            ended: list[EndedJob] = []
            for key, blob, payload in zip(reply[::3], reply[1::3], reply[2::3], strict=True):
                try:
                    jobs.append(record.claimed_job(key, blob, payload))
                except Corrupt as error:
                    keys.append(key)
                    errors += (record.claim_of(blob), str(error))
                    ended.append(record.quarantined_job(key, blob, str(error)))
            claimed.append(jobs)
            if keys:
                await self._client.run_idempotent("quarantine", arguments.ids(keys), *errors, now=self._now())
                self.ended.extend(ended)
                others = ClaimRequest(request.queues, len(keys), request.worker)
                jobs += (await self.claim([others]))[0]
        return claimed

    async def settle(self, ops: Sequence[SettleOp], token: Token | None = None) -> list[JobState | None]:
        reply = await self._run(token, "settle", *arguments.ops(ops))
        if len(reply) > len(ops):
            applied = zip(ops, reply, strict=False)
            self._skip([job for op, code in applied if code for job in op.insert], reply[len(ops) :])
        return [STATES[code] if code else None for code in reply[: len(ops)]]

    def _skip(self, jobs: Sequence[Insertion], reply: bytes) -> None:
        enqueued = zip(jobs, _enqueued(jobs, reply), strict=True)
        self.skipped.update(job.key for job, each in enqueued if not each.created)

    async def renew(self, renewals: Sequence[Renewal], token: Token | None = None) -> list[Renewed]:
        given: Arguments = [arguments.ids(renewal.key for renewal in renewals)]
        for renewal in renewals:
            given += (renewal.claim, renewal.lease)
        reply = await self._run(token, "renew", *given)
        renewed: list[Renewed] = []
        for start in range(0, len(reply), 9):
            lease = TIME.unpack_from(reply, start)[0]
            renewed.append(Renewed(None if lease == NONE else lease, reply[start + 8] == 1))
        return renewed

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        given: Arguments = [arguments.ids(report.key for report in reports)]
        for report in reports:
            given += (report.claim, record.progress(report.fraction, report.message))
        await self._run(token, "record_progress", *given)

    # Jobs by id.

    async def cancel(self, keys: Sequence[bytes], token: Token | None = None) -> list[CancelOutcome]:
        given = (arguments.ids(keys), *arguments.retention(self.retention))
        outcomes, ended = await self._run(token, "cancel", *given)
        self.ended.extend(record.ended_jobs(ended, CANCELLED))
        return [_OUTCOMES[code] for code in outcomes]

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        await self._listen()
        (keys,) = await self._client.execute(("SMEMBERS", self._keys.cancel_requests))
        if not keys:
            return []
        claims = await self._client.run_idempotent("cancel_requests", arguments.ids(keys))
        return list(_CLAIM.iter_unpack(claims))

    async def requeue(self, keys: Sequence[bytes], token: Token | None = None) -> list[bool]:
        replies, requeued = await self._run(token, "requeue", arguments.ids(keys))
        self.ended.extend(record.ended_jobs(requeued, REQUEUED))
        return [code == 1 for code in replies]

    async def requeue_dead(self, queue: str, limit: int, token: Token | None = None) -> int:
        keys = await self._finished_keys(JobState.DEAD, queue, None, limit)
        return sum(await self.requeue(keys, token))

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        keys = await self._finished_keys(JobState.DEAD, queue, None, limit)
        return await self.purge(keys, token)

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        return (await self._drop(token, JobState.DEAD, keys))[0]

    async def _drop(
        self,
        token: Token | None,
        state: JobState,
        keys: Sequence[bytes],
        age: int | str = "",
        cursor: bytes | None = None,
    ) -> tuple[int, bytes | None]:
        """Remove the jobs that are in the state. Return their number, and the cursor of the first try."""
        given = (STATE_CODES[state], age, cursor or b"", arguments.ids(keys))
        dropped, cursor = await self._run(token, "drop", *given)
        return dropped, cursor or None

    async def reschedule(self, changes: Sequence[Reschedule], token: Token | None = None) -> list[bool]:
        given: Arguments = [arguments.ids(change.key for change in changes)]
        for change in changes:
            given.append(b"" if change.run_at is None else TIME.pack(change.run_at))
            given.append(b"" if change.priority is None else change.priority)
        return [code == 1 for code in await self._run(token, "reschedule", *given)]

    async def kv_write(self, writes: Sequence[KvWrite], token: Token | None = None) -> None:
        last = dict(writes)
        puts = [part for key, value in last.items() if value is not None for part in (key, value)]
        deletes = [key for key, value in last.items() if value is None]
        await self._run(token, "kv_write", len(puts) // 2, *puts, len(deletes), *deletes)

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        await self._run(token, "pause", queue, int(paused))

    async def diagnose(self) -> list[Diagnostic]:
        return await diagnose(self._client)

    # Duties.

    async def promote(self, limit: int, token: Token | None = None) -> tuple[int, list[EndedJob]]:
        promoted, expired = await self._run(token, "promote", limit, *arguments.retention(self.retention))
        return promoted, record.ended_jobs(expired)

    async def next_due(self) -> int | None:
        await self._listen()
        first = (0, 0, "WITHSCORES")
        (seconds, micros), waiting, *ends = await self._client.execute(
            ("TIME",),
            ("ZCARD", self._keys.waiting_claims),
            ("ZRANGE", self._keys.due, *first),
            ("ZRANGE", self._keys.expiries, *first),
            ("ZRANGE", self._keys.handoffs, *first),
            ("ZRANGE", self._keys.bucket_dues, *first),
        )
        now = self._now()
        at = int(seconds) * 1_000_000 + int(micros) if now is None else now
        times = [int(float(end[1])) for end in ends if end]
        if waiting:
            times.append(at + _HANDOFFS_CHECKED)  # A hand-off publishes no due time.
        return max(min(times) - at, 0) if times else None

    async def reap(
        self, limit: int, expired_by: int | None = None, token: Token | None = None
    ) -> list[EndedJob]:
        given = (limit, "" if expired_by is None else expired_by, *arguments.retention(self.retention))
        return record.ended_jobs(await self._run(token, "reap", *given))

    async def reclaim(self, workers: Sequence[str], limit: int, token: Token | None = None) -> list[EndedJob]:
        given = (limit, len(workers), *workers, *arguments.retention(self.retention))
        token = token or _new_token()
        step, cursor = 0, b"0"
        ended: list[Any] = []
        while len(ended) < limit * record.REPORTED:
            page = (cursor, _EXAMINED, len(ended), *ended)
            # A repetition continues after the last step whose reply is stored.
            step, cursor, ended = await self._run(token, "reclaim", *page, *given, step=step)
            step += 1
            if cursor == b"0":
                break
        return record.ended_jobs(ended)

    async def sweep(
        self, limit: int, over_by: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        jobs, ids = await self._run(token, "sweep", limit, now=over_by)
        return jobs, ids

    async def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, token: Token | None = None
    ) -> tuple[int, bytes | None]:
        keys = await self._finished_keys(state, None, after, limit)
        cursor = keys[-1] if len(keys) == limit else None
        return await self._drop(token, state, keys, age, cursor)

    # Limits.

    async def set_limit(self, name: str, value: bytes | None, token: Token | None = None) -> int:
        given: Arguments = [name, 0] if value is None else [name, 1, value]
        token = token or _new_token()
        step, cursor, woken = 0, b"", 0
        while step == 0 or (cursor and woken < BATCH):
            # A repetition continues after the last step whose reply is stored.
            step, cursor, woken = await self._run(token, "set_limit", *given, cursor, woken, step=step)
            step += 1
        return woken

    # Documents.

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        token: Token | None = None,
    ) -> bool:
        given = (int(announce), *arguments.documents(writes), *arguments.jobs(jobs))
        reply: bytes = await self._run(token, "compare_and_set", *given)
        if reply[0]:
            self._skip(jobs, reply[1:])
        return reply[0] == 1


async def _logged(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except DayjobError as error:
        _log.debug("a notification was not sent; the leader repeats it: %s", error)


def _new_token() -> Token:
    key = new_key()
    return Token(key=key, client=key, slot=0, number=1)


def _enqueued(jobs: Sequence[Insertion], reply: bytes | list[Any]) -> list[Enqueued]:
    """Return the reply for each job. Raise ``QueueFull`` if a queue had no room for them."""
    if isinstance(reply, list):
        queue, *numbers = reply
        raise QueueFull(queue.decode(), *numbers)
    enqueued: list[Enqueued] = []
    at = 0
    for job in jobs:
        if reply[at]:
            enqueued.append(Enqueued(id_text(job.key), True))
            at += 1
        else:
            enqueued.append(Enqueued(id_text(reply[at + 1 : at + 17]), False))
            at += 17
    return enqueued
