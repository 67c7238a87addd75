"""Stores jobs: in one statement where no conflict needs care, else in a transaction of several.

Jobs with dedup keys are stored after the others and in the order of queue and key, so that two batches with
the same keys never deadlock. A key that another open transaction holds is waited for only as long as the
connection's ``lock_timeout``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from dayjob.engines.base import Insertion, Token
from dayjob.engines.postgres.database import Connection, Database, token_key
from dayjob.engines.postgres.notifier import Notifier
from dayjob.engines.postgres.rows import insertion_columns
from dayjob.engines.postgres.statements import Statements
from dayjob.model.job import Enqueued, id_text

Fetch = Callable[..., Awaitable[Sequence[Sequence[Any]]]]
"""Runs a statement with its parameters on a connection of any driver, and returns its rows."""

_TRIES = 20


class Transaction(Struct, frozen=True):
    """A transaction that stores jobs, at which time, and the notification that its commit sends."""

    fetch: Fetch
    statements: Statements
    now: int | None
    channel: str
    message: str | None

    async def run(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        return await self.fetch(self.statements[name], *parameters)


async def insert(
    database: Database, notifier: Notifier, jobs: Sequence[Insertion], now: int | None, token: Token | None
) -> list[Enqueued]:
    """Store jobs, with their kv writes, in one commit."""
    if is_plain(jobs):
        columns = insertion_columns(jobs)
        with notifier.with_commit(jobs) as message:
            name, channel = _statement(jobs), notifier.channel
            reply = await database.write_statement(
                name, token, now, channel, message, *columns, wait_for_locks=False
            )
        enqueued = _plain_replies(jobs, reply)
    else:
        several = len(jobs) > 1 or bool(jobs[0].kv) or jobs[0].reserve_id
        key = token_key(token)

        async def store(connection: Connection) -> list[str]:
            transaction = Transaction(connection.fetch, database.statements, now, notifier.channel, message)
            if not several:
                return _encode((await _store(transaction, [(0, jobs[0])], key)).values())
            async with connection.transaction():
                reply = _encode(await insert_all(transaction, jobs))
                await transaction.run("store_reply", key, reply)
            return reply

        with notifier.with_commit(jobs) as message:
            reply = await database.write(token, key, store, keyed=True)
        enqueued = _plain_replies(jobs, None) if reply is None else _decode(reply)
        if several:
            return enqueued
    if token is not None and token.repeated and not any(each.created for each in enqueued):
        # No job was stored, hence no reply. The first try may have been under way, and be the conflict.
        stored = await database.fetch("stored_reply", token.key)
        return _plain_replies(jobs, stored[0][0]) if stored else enqueued
    return enqueued


def is_plain(jobs: Sequence[Insertion]) -> bool:
    """Whether one statement stores them: none has a dedup key or kv writes."""
    return all(job.dedup_key is None and not job.kv for job in jobs)


def _statement(jobs: Iterable[Insertion]) -> str:
    return "insert_reserving" if any(job.reserve_id for job in jobs) else "insert"


def _plain_replies(jobs: Sequence[Insertion], stored: Sequence[str] | None) -> list[Enqueued]:
    """Return the replies for jobs without dedup keys: all were stored (None), or those with these ids."""
    if stored is None:
        return [Enqueued(id_text(job.key), True) for job in jobs]
    new = set(stored)
    replies = []
    for job in jobs:
        id = id_text(job.key)
        replies.append(Enqueued(id, id in new))
        new.discard(id)
    return replies


def _encode(replies: Iterable[Enqueued]) -> list[str]:
    return [f"{each.id} {each.created:d}" for each in replies]


def _decode(reply: Sequence[str]) -> list[Enqueued]:
    return [Enqueued(text[:36], text[37:] == "1") for text in reply]


async def insert_all(transaction: Transaction, jobs: Sequence[Insertion]) -> list[Enqueued]:
    """Store any jobs, with their kv writes, in an open transaction."""
    replies: dict[int, Enqueued] = {}
    for numbers in _in_order(jobs):
        replies |= await _store(transaction, [(number, jobs[number]) for number in numbers], None)
    in_order = [replies[number] for number in range(len(jobs))]
    values: dict[bytes, bytes] = {}
    for job, reply in zip(jobs, in_order, strict=True):
        if reply.created and job.kv:
            values |= job.kv
    if values:
        await transaction.run("kv_write", None, list(values), list(values.values()))
    return in_order


def _in_order(jobs: Sequence[Insertion]) -> list[list[int]]:
    """Return the numbers of the jobs, in the groups and the order in which to store them."""
    if len({job.key for job in jobs}) < len(jobs):
        return [[number] for number in range(len(jobs))]  # An id occurs twice: one by one, the first wins.
    plain = [number for number, job in enumerate(jobs) if job.dedup_key is None]
    keyed = [number for number, job in enumerate(jobs) if job.dedup_key is not None]
    keyed.sort(key=lambda number: (jobs[number].queue, jobs[number].dedup_key or ""))
    return [numbers for numbers in (plain, keyed) if numbers]


async def _store(
    transaction: Transaction, jobs: Sequence[tuple[int, Insertion]], token: bytes | None
) -> dict[int, Enqueued]:
    """Store the jobs or find the jobs in conflict, again if a conflict was gone before it was found."""
    replies: dict[int, Enqueued] = {}
    left = list(jobs)
    for _ in range(_TRIES):
        given = [job for _, job in left]
        rows = await transaction.run(
            _statement(given), token, transaction.now, transaction.channel, transaction.message,
            *insertion_columns(given),
        )  # fmt: skip
        enqueued, unused = _plain_replies(given, rows[0][0]), rows[0][2:]
        if any(unused):
            await transaction.run("unreserve_ids", *unused)
        replies |= {number: each for (number, _), each in zip(left, enqueued, strict=True) if each.created}
        left = [(number, job) for number, job in left if number not in replies]
        if not left:
            return replies
        conflicts = await transaction.run(
            "conflicts",
            [id_text(job.key) for _, job in left],
            [job.queue for _, job in left],
            [job.dedup_key for _, job in left],
            transaction.now,
        )
        for (number, _), (id, exists, holder) in zip(left, conflicts, strict=True):
            if exists or holder is not None:
                replies[number] = Enqueued(id if exists else holder, False)
        left = [(number, job) for number, job in left if number not in replies]
        if not left:
            return replies
    raise RuntimeError(
        f"the dedup key {left[0][1].dedup_key!r} is taken and released too fast to find its holder"
    )
