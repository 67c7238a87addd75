"""Settles claims: acks of jobs that are not kept in one statement, other settlements in another.

Settlements with follow-up jobs or kv writes take a transaction. The effects are written only for those that
were applied, and the whole batch commits at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import Struct

from dayjob.engines.base import Contended, Insertion, SettleOp
from dayjob.engines.doubts import Doubts
from dayjob.engines.postgres.database import Database
from dayjob.engines.postgres.insert import Transaction, insert_all
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import ack_columns, settle_columns
from dayjob.errors import EngineUnavailable
from dayjob.model.job import JobState, id_key
from dayjob.runtime import ids

Claim = tuple[bytes, int]
Settled = dict[Claim, tuple[JobState, str]]
"""The new state and the queue of each job whose claim was current, by that claim."""

_STATES = {state.value: state for state in JobState}
_LOST: tuple[JobState | None, str] = (None, "")
_DONE = (JobState.DONE, "")


class Batch(Struct, frozen=True, eq=False):
    """Settlements as they are sent."""

    token: bytes
    ops: Sequence[SettleOp]
    now: int | None


class Settler:
    """Settles the claims of one engine, each batch in one commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._doubts = Doubts[Batch]()

    async def settle(self, ops: Sequence[SettleOp], now: int | None) -> Settled | None:
        """Return the settlements whose claims were current, also those that an earlier try has applied.

        None is short for: all are done, and not kept.
        """
        settled: Settled = {}
        for doubt in self._doubts.about(ops):
            settled |= _in_full(doubt.ops, await apply(self._database, doubt))
            self._doubts.remove(doubt)
        left = ops
        if settled:
            left = [op for op in ops if (op.key, op.epoch) not in settled]
        if left:
            batch = Batch(ids.new_key(), _first_of_each(left), now)
            try:
                applied = await apply(self._database, batch)
            except Contended:
                raise  # Nothing was changed.
            except EngineUnavailable:
                self._doubts.add(batch.ops, batch)
                raise
            if applied is None and batch.ops is ops:
                return None
            settled |= _in_full(batch.ops, applied)
        return settled


async def apply(database: Database, batch: Batch) -> Settled | None:
    """Apply a batch, or return the reply of its first try."""
    ops, token, now = batch.ops, batch.token, batch.now
    statements, notifier = database.statements, database.notifier
    if all(op.plain for op in ops):
        columns = ack_columns(ops)

        async def ack(connection: Connection) -> Settled | None:
            return _decode(await connection.fetchval(statements["ack"], token, *columns))

        return await database.write(token, ack, _decode)

    follow_ups = [job for op in ops for job in op.insert]
    if not follow_ups and not any(op.kv for op in ops):

        async def settle(connection: Connection) -> Settled | None:
            return _decode(await connection.fetchval(statements["settle"], token, now, *settle_columns(ops)))

        return await database.write(token, settle, _decode)

    with notifier.with_commit(follow_ups) as message:

        async def settle_with_effects(connection: Connection) -> Settled | None:
            async with connection.transaction():
                transaction = Transaction(connection.fetch, statements, now, notifier.channel, message)
                reply = await _settle_with_effects(transaction, ops)
                await transaction.run("store_reply", token, reply)
            return _decode(reply)

        return await database.write(token, settle_with_effects, _decode, wait_for_locks=False)


def _first_of_each(ops: Sequence[SettleOp]) -> Sequence[SettleOp]:
    """Return the first settlement of each claim; a claim is settled once."""
    if len({op.key for op in ops}) == len(ops):
        return ops
    first: dict[tuple[bytes, int], SettleOp] = {}
    for op in ops:
        first.setdefault((op.key, op.epoch), op)
    return list(first.values())


def states(ops: Sequence[SettleOp], settled: Settled) -> list[JobState | None]:
    """Return the new states in the order of the settlements. A second settlement of a claim is lost."""
    left = dict(settled)
    return [left.pop((op.key, op.epoch), _LOST)[0] for op in ops]


def _decode(reply: Sequence[str] | None) -> Settled | None:
    """Decode the reply of ``settle.sql`` or ``ack.sql``."""
    return None if reply is None else _decode_settled(reply)


def _decode_settled(reply: Sequence[str]) -> Settled:
    settled = {}
    for text in reply:
        id, epoch, state, queue = text.split(" ", 3)
        settled[id_key(id), int(epoch)] = (_STATES[state], queue)
    return settled


def _in_full(ops: Sequence[SettleOp], settled: Settled | None) -> Settled:
    return {(op.key, op.epoch): _DONE for op in ops} if settled is None else settled


async def _settle_with_effects(transaction: Transaction, ops: Sequence[SettleOp]) -> list[str]:
    """Apply settlements and their effects in an open transaction."""
    reply: list[str] = []
    for step in _in_steps(ops):
        rows = await transaction.run("settle", None, transaction.now, *settle_columns(step))
        reply += rows[0][0]
        settled = _decode_settled(rows[0][0])
        await _write_effects(transaction, [op for op in step if (op.key, op.epoch) in settled])
    return reply


async def _write_effects(transaction: Transaction, ops: Sequence[SettleOp]) -> None:
    jobs = list(chain.from_iterable(op.insert for op in ops))
    if any(job.kv for job in jobs):
        for op in ops:
            await _write_jobs_and_values(transaction, op.insert, [op])
    else:
        await _write_jobs_and_values(transaction, jobs, ops)


async def _write_jobs_and_values(
    transaction: Transaction, jobs: Sequence[Insertion], ops: Sequence[SettleOp]
) -> None:
    if jobs:
        await insert_all(transaction, jobs)
    values: dict[bytes, bytes] = {}
    for op in ops:
        values |= op.kv or {}
    if values:
        await transaction.run("kv_write", None, list(values), list(values.values()))


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
