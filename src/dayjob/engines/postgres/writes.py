"""Writes of jobs, settlements and documents: in one statement where that is enough, else in a transaction.

Jobs with dedup keys are stored after the others and in the order of queue and key, so that two batches with
the same keys never deadlock. A key that another open transaction holds is waited for only as long as the
connection's ``lock_timeout``.

Acks without effects take one statement, other settlements another. Follow-up jobs and kv writes are
written only for the settlements that were applied, and the whole batch commits at once.

Documents are written before jobs, so a writer that waits for a document holds no job or dedup key that
another needs. Their reply is stored whether it is yes or no. A repetition that finds the documents changed by
its own first try, still under way when it began, then finds the token of that try and returns its reply.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import asyncpg
from msgspec import Struct

from dayjob.engines.base import DocumentWrite, Engine, Insertion, SettleOp, Token
from dayjob.engines.postgres.database import Connection, Database, StoredReply, token_key
from dayjob.engines.postgres.flow_control import Placement, is_limited, is_placed
from dayjob.engines.postgres.notifier import Notifier
from dayjob.engines.postgres.rows import (
    ack_columns,
    are_acks,
    in_lock_order,
    insertion_columns,
    plain_columns,
    settle_columns,
    split_topics,
)
from dayjob.engines.postgres.statements import Statements
from dayjob.model.job import FINISHED, Enqueued, JobState, id_key, id_text, id_texts
from dayjob.runtime.signals import DUE, Topic, documents_topic

Fetch = Callable[..., Awaitable[Sequence[Sequence[Any]]]]
"""Runs a statement with its parameters on a connection of any driver, and returns its rows."""

_TRIES = 20

Claim = tuple[bytes, bytes]
Settled = dict[Claim, tuple[JobState, str]]
"""The new state and the queue of each job whose claim was current, by that claim."""

_STATES = {state.value: state for state in JobState}
_LOST: tuple[JobState | None, str] = (None, "")
_DONE = (JobState.DONE, "")
_SKIPPED = "-"
"""Marks the id of a follow-up job that was not stored, in a reply."""

_WRITTEN, _NOT_WRITTEN = ["true"], ["false"]


class Transaction(Struct, frozen=True):
    """A transaction that stores jobs, at which time, and the notification that its commit sends."""

    fetch: Fetch
    statements: Statements
    now: int | None
    channel: str
    message: str | None
    of_caller: bool = False
    _placements: list[Placement] = []

    @property
    def placement(self) -> Placement:
        """The limits and turns of its jobs."""
        if not self._placements:
            self._placements.append(Placement(self.run, self.now, of_caller=self.of_caller))
        return self._placements[0]

    async def run(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        return await self.fetch(self.statements[name], *parameters)


class _Unexpected(Exception):
    """A document is not as expected: the transaction is rolled back."""


class Writes(Engine):
    """The verbs of the engine that write jobs, settlements and documents."""

    _notifier: Notifier

    @property
    @abstractmethod
    def _database(self) -> Database: ...

    def _begun(self, connection: Connection, message: str | None) -> Transaction:
        database, channel = self._database, self._notifier.channel
        return Transaction(connection.fetch, database.statements, database.now(), channel, message)

    async def insert(self, jobs: Sequence[Insertion], token: Token | None = None) -> list[Enqueued]:
        enqueued = await self._insert(jobs, token)
        self._notifier.jobs_inserted(jobs)
        return enqueued

    async def _insert(self, jobs: Sequence[Insertion], token: Token | None) -> list[Enqueued]:
        database, notifier = self._database, self._notifier
        columns = plain_columns(jobs)
        if columns is not None or is_plain(jobs):
            alike = columns is not None
            with notifier.with_commit(jobs[:1] if alike else jobs) as message:
                given = (token, database.now(), notifier.channel, message)
                name = "insert_plain" if alike else _statement(jobs, "insert")
                columns = columns or [False, *insertion_columns(jobs)]
                try:
                    reply = await database.write_statement(name, *given, *columns, wait_for_locks=False)
                except asyncpg.UniqueViolationError:  # An id exists.
                    name, columns = _statement(jobs), [False, *insertion_columns(jobs)]
                    reply = await database.write_statement(name, *given, *columns, wait_for_locks=False)
            enqueued = _plain_replies(jobs, reply)
        else:
            one = jobs[0]
            several = len(jobs) > 1 or bool(one.kv) or one.reserve_id or is_placed(one) or one.debounced
            key = token_key(token)

            async def store(connection: Connection) -> list[str]:
                transaction = self._begun(connection, message)
                if not several:
                    return _to_texts((await _store(transaction, [(0, jobs[0])], key, set())).values())
                async with connection.transaction():
                    enqueued, topics = await insert_new(transaction, jobs)
                    reply = [*_to_texts(enqueued), *topics]
                    await transaction.run("store_reply", key, reply)
                return reply

            with notifier.with_commit(jobs) as message:
                reply = await database.write(token, key, store, keyed=True)
            enqueued = (
                _plain_replies(jobs, None) if reply is None else _from_texts(notifier.publish_reply(reply))
            )
            if several:
                return enqueued
        if token is not None and token.repeated and not any(each.created for each in enqueued):
            # No job was stored, hence no reply. The first try may have been under way, and be the conflict.
            stored = await database.fetch("stored_reply", token.key)
            return _plain_replies(jobs, stored[0][0]) if stored else enqueued
        return enqueued

    async def settle(self, ops: Sequence[SettleOp], token: Token | None = None) -> list[JobState | None]:
        """Settle in one statement, with effects in a transaction. A second settlement of a claim is lost."""
        database, notifier = self._database, self._notifier
        sent = ops
        if len({op.key for op in ops}) < len(ops):
            first: dict[Claim, SettleOp] = {}
            for op in ops:
                first.setdefault((op.key, op.claim), op)
            sent = list(first.values())
        if are_acks(sent):
            sent = in_lock_order(sent)
            reply = await database.write_statement("ack", token, database.now(), *ack_columns(sent))
            if reply is None and len(sent) == len(ops):
                notifier.jobs_finished([op.key for op in ops])
                return [JobState.DONE] * len(ops)
        elif not any(op.insert or op.kv for op in sent):
            reply = await database.write_statement("settle", token, database.now(), *settle_columns(sent))
        else:
            stored = await self._settle_with_effects(sent, token)
            reply = None if stored is None else [text for text in stored if text[0] != _SKIPPED]
            self.skipped.update(id_key(text[1:]) for text in stored or () if text[0] == _SKIPPED)
        topics: set[Topic] = set()
        if reply is not None:
            reply, topics = split_topics(reply)
        settled = {(op.key, op.claim): _DONE for op in sent} if reply is None else _settled(reply, sent)
        notifier.jobs_finished([key for (key, _), (state, _) in settled.items() if state in FINISHED])
        if any(state not in FINISHED for state, _ in settled.values()):
            notifier.jobs_returned({queue for state, queue in settled.values() if state is JobState.PENDING})
            if any(state is JobState.SCHEDULED for state, _ in settled.values()):
                notifier.publish([DUE])
        if topics:
            notifier.publish(list(topics))
        for op in ops:
            if op.insert:
                notifier.jobs_inserted(op.insert)
        return [settled.pop((op.key, op.claim), _LOST)[0] for op in ops]

    async def _settle_with_effects(self, ops: Sequence[SettleOp], token: Token | None) -> StoredReply:
        key = token_key(token)

        async def run(connection: Connection) -> StoredReply:
            reply: list[str] = []
            first = 1
            async with connection.transaction():
                transaction = self._begun(connection, message)
                await transaction.placement.lock_turns([job for op in ops for job in op.insert])
                for step in _in_steps(ops):
                    found = await transaction.run(
                        "settle", None, transaction.now, *settle_columns(step, first)
                    )
                    first += len(step)
                    reply += found[0][0]
                    if found[0][1] is not None:
                        transaction.placement.departed.append(found[0][1])
                    settled = _settled(found[0][0], ops)
                    applied = [op for op in step if (op.key, op.claim) in settled]
                    reply += [_SKIPPED + id for id in await _write_effects(transaction, applied)]
                reply += await transaction.placement.finish()
                await transaction.run("store_reply", key, reply)
            return reply

        keyed = any(op.kv or not is_plain(op.insert) for op in ops)
        with self._notifier.with_commit([job for op in ops for job in op.insert]) as message:
            return await self._database.write(token, key, run, keyed=keyed)

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        token: Token | None = None,
    ) -> bool:
        """The reply to a write with jobs also has the ids of those that were not stored, for ``skipped``."""
        database, notifier = self._database, self._notifier
        now, channel, key = database.now(), notifier.channel, token_key(token)
        topics = {documents_topic(write.kind): None for write in writes} if announce else {}
        announcement = notifier.message(list(topics)) if topics else None
        new = [write for write in writes if write.expected is None]
        temporary = [DocumentWrite(write.kind, write.name, b"", None) for write in new if write.value is None]

        async def in_transaction(connection: Connection) -> StoredReply:
            sql = database.statements["compare_and_set"]
            try:
                async with connection.transaction():
                    stored = None if jobs else key
                    reply: list[str] = await connection.fetchval(
                        sql, stored, now, channel, announcement, *_document_columns(writes)
                    )
                    if reply != _WRITTEN:
                        raise _Unexpected
                    if temporary:
                        await connection.fetchval(
                            sql, None, now, channel, None, *_document_columns(temporary)
                        )
                    if jobs:
                        transaction = self._begun(connection, message)
                        await transaction.placement.lock_turns(jobs)
                        enqueued = zip(jobs, await insert_all(transaction, jobs), strict=True)
                        reply += await transaction.placement.finish()
                        reply += [id_text(job.key) for job, each in enqueued if not each.created]
                        await transaction.run("store_reply", key, reply)
            except _Unexpected:
                await connection.execute(database.statements["store_reply"], key, _NOT_WRITTEN)
                return _NOT_WRITTEN
            return reply

        if jobs or temporary or len(new) > 1:
            with notifier.with_commit(jobs) as message:
                reply = await database.write(token, key, in_transaction, keyed=not is_plain(jobs))
        else:
            reply = await database.write_statement(
                "compare_and_set", token, now, channel, announcement, *_document_columns(writes)
            )
        assert reply is not None
        reply, woken = split_topics(reply)
        if woken:
            notifier.publish(list(woken))
        self.skipped.update(map(id_key, reply[1:]))
        written = reply[0] == _WRITTEN[0]
        if written:
            notifier.jobs_inserted(jobs)
            self.signals.publish(topics)
        return written


def is_plain(jobs: Sequence[Insertion]) -> bool:
    """Whether one statement stores them: none has a dedup key, kv writes, limits or a turn."""
    return all(job.dedup_key is None and not job.kv and not is_placed(job) for job in jobs)


def _statement(jobs: Iterable[Insertion], otherwise: str = "insert_skipping") -> str:
    return "insert_reserving" if any(job.reserve_id for job in jobs) else otherwise


def _plain_replies(jobs: Sequence[Insertion], stored: Sequence[str] | None) -> list[Enqueued]:
    """Return the replies for jobs without dedup keys: all were stored (None), or those with these ids."""
    if stored is None:
        return [Enqueued(id, True) for id in id_texts([job.key for job in jobs])]
    new = set(stored)
    replies = []
    for job in jobs:
        id = id_text(job.key)
        replies.append(Enqueued(id, id in new))
        new.discard(id)
    return replies


def _to_texts(replies: Iterable[Enqueued]) -> list[str]:
    return [f"{each.id} {each.created:d}" for each in replies]


def _from_texts(reply: Sequence[str]) -> list[Enqueued]:
    return [Enqueued(text[:36], text[37:] == "1") for text in reply]


async def insert_new(transaction: Transaction, jobs: Sequence[Insertion]) -> tuple[list[Enqueued], list[str]]:
    """Store the jobs of an enqueue in an open transaction, with their limits and turns, or raise.

    Return also the topics of other jobs, for the reply.
    """
    await transaction.placement.check_room(jobs)
    await transaction.placement.lock_turns(jobs)
    enqueued = await insert_all(transaction, jobs)
    return enqueued, await transaction.placement.finish()


async def insert_all(transaction: Transaction, jobs: Sequence[Insertion]) -> list[Enqueued]:
    """Store any jobs, with their kv writes, in an open transaction. Their placement is not finished."""
    placed = any(map(is_placed, jobs))
    if placed:
        transaction.placement.set_turns(jobs)
    replies: dict[int, Enqueued] = {}
    locked: set[str] = set()
    for numbers in _in_order(jobs):
        replies |= await _store(transaction, [(number, jobs[number]) for number in numbers], None, locked)
    in_order = [replies[number] for number in range(len(jobs))]
    if placed:
        await transaction.placement.stored(jobs, in_order)
    values: dict[bytes, bytes] = {}
    for job, reply in zip(jobs, in_order, strict=True):
        if reply.created and job.kv:
            values |= job.kv
    if values:
        await transaction.run("kv_write", None, list(values), list(values.values()))
    calls = {
        reply.id: job
        for job, reply in zip(jobs, in_order, strict=True)
        if job.dedup_latest and not reply.created and reply.id in locked
    }
    if calls:
        await transaction.placement.replace(calls)
    return in_order


def _in_order(jobs: Sequence[Insertion]) -> list[list[int]]:
    """Return the numbers of the jobs, in the groups and the order in which to store them."""
    if len({job.key for job in jobs}) < len(jobs):
        return [[number] for number in range(len(jobs))]  # An id occurs twice: one by one, the first wins.
    plain = [number for number, job in enumerate(jobs) if job.dedup_key is None]
    keyed = [number for number, job in enumerate(jobs) if job.dedup_key is not None]
    keys = [(job.dedup_scope, job.dedup_key or "") for job in jobs]
    keyed.sort(key=keys.__getitem__)
    windows = {keys[number] for number in keyed if jobs[number].dedup_for is not None}
    groups = [keyed]
    if sum(keys[number] in windows for number in keyed) > len(windows):
        # A group opens its windows first. Of one key, the first job wins.
        groups = [[number] for number in keyed]
    return [numbers for numbers in (plain, *groups) if numbers]


async def _store(
    transaction: Transaction, jobs: Sequence[tuple[int, Insertion]], token: bytes | None, locked: set[str]
) -> dict[int, Enqueued]:
    """Store the jobs or find the jobs in conflict, again if a conflict was gone before it was found.

    Add the holders to ``locked`` that wait for one of the jobs to replace their calls.
    """
    replies: dict[int, Enqueued] = {}
    left = list(jobs)
    for _ in range(_TRIES):
        free = await _hold_keys(transaction, left)
        given = [job for _, job in free]
        if given:
            late = token is None and (transaction.of_caller or not all(map(is_limited, given)))
            rows = await transaction.run(
                _statement(given), token, transaction.now, transaction.channel, transaction.message, late,
                *insertion_columns(given),
            )  # fmt: skip
            enqueued, unused = _plain_replies(given, rows[0][0]), [id for ids in rows[0][2:] for id in ids]
            pairs = list(zip(free, enqueued, strict=True))
            unused += [id_text(job.window) for (_, job), each in pairs if job.dedup_for and not each.created]
            if unused:
                await transaction.run("unreserve_ids", unused)
            replies |= {number: each for (number, _), each in pairs if each.created}
        left = [(number, job) for number, job in left if number not in replies]
        if not left:
            return replies
        conflicts = await transaction.run(
            "conflicts",
            [id_text(job.key) for _, job in left],
            [job.dedup_scope for _, job in left],
            [job.dedup_key for _, job in left],
            [None if job.dedup_key is None else id_text(job.window) for _, job in left],
            transaction.now,
        )
        latest: dict[str, str] = {}
        for (number, job), (id, exists, holder, window_job) in zip(left, conflicts, strict=True):
            other = id if exists else holder or window_job
            if other is not None:
                replies[number] = Enqueued(other, False)
            if job.dedup_latest and not exists and holder is not None:
                latest[holder] = job.dedup_key or ""
        if latest:
            ids = sorted(latest)  # The lock order.
            found = await transaction.run("lock_holders", ids, [latest[id] for id in ids])
            locked |= {id for id, waits in found if waits}
            released = latest.keys() - {id for id, _ in found}
            for number, job in left:
                if number in replies and job.dedup_latest and replies[number].id in released:
                    del replies[number]
        left = [(number, job) for number, job in left if number not in replies]
        if not left:
            return replies
    raise RuntimeError(
        f"the dedup key {left[0][1].dedup_key!r} is taken and released too fast to find its holder"
    )


async def _hold_keys(
    transaction: Transaction, jobs: Sequence[tuple[int, Insertion]]
) -> list[tuple[int, Insertion]]:
    """Open the windows of the jobs. Return the jobs without those whose windows are open already."""
    opening = [job for _, job in jobs if job.dedup_for is not None]
    if not opening:
        return list(jobs)
    opened = await transaction.run(
        "hold_keys",
        transaction.now,
        [id_text(job.window) for job in opening],
        [id_text(job.key) for job in opening],
        [job.dedup_for for job in opening],
    )
    ids = {row[0] for row in opened}
    return [(number, job) for number, job in jobs if job.dedup_for is None or id_text(job.key) in ids]


def _settled(reply: Sequence[str], sent: Sequence[SettleOp]) -> Settled:
    """Decode the reply of ``settle.sql`` or ``ack.sql`` to these settlements."""
    settled = {}
    for text in reply:
        number, state, queue = text.split(" ", 2)
        op = sent[int(number) - 1]
        settled[op.key, op.claim] = (_STATES[state], queue)
    return settled


async def _write_effects(transaction: Transaction, ops: Sequence[SettleOp]) -> list[str]:
    """Write follow-up jobs and kv: of all at once, or of one after the other if jobs have kv of their own.

    Return the ids of follow-up jobs that were not stored.
    """
    skipped: list[str] = []
    one_by_one = any(job.kv for op in ops for job in op.insert)
    for group in [[op] for op in ops] if one_by_one else [ops]:
        jobs = [job for op in group for job in op.insert]
        if jobs:
            enqueued = zip(jobs, await insert_all(transaction, jobs), strict=True)
            skipped += [id_text(job.key) for job, reply in enqueued if not reply.created]
        values: dict[bytes, bytes] = {}
        for op in group:
            values |= op.kv or {}
        if values:
            await transaction.run("kv_write", None, list(values), list(values.values()))
    return skipped


def _in_steps(ops: Sequence[SettleOp]) -> list[list[SettleOp]]:
    """Return the settlements in groups, such that the order inside a group makes no difference.

    A follow-up job ends its group if it has a dedup key, or the id of a job that is settled later.
    """
    steps: list[list[SettleOp]] = [[]]
    later = {op.key for op in ops}
    for op in ops:
        steps[-1].append(op)
        later.discard(op.key)
        if any(job.dedup_key is not None or job.key in later for job in op.insert):
            steps.append([])
    return [step for step in steps if step]


def _document_columns(writes: Sequence[DocumentWrite]) -> list[list[Any]]:
    """Return the parameters of ``compare_and_set.sql`` from the fifth on."""
    return [
        [write.kind for write in writes],
        [write.name for write in writes],
        [write.expected for write in writes],
        [write.value for write in writes],
    ]
