"""Settles claims: acks of jobs that are not kept in one statement, other settlements in another.

Settlements with follow-up jobs or kv writes take a transaction. The effects are written only for those that
were applied, and the whole batch commits at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from dayjob.engines.base import Insertion, SettleOp, Token
from dayjob.engines.postgres.database import Database, token_key
from dayjob.engines.postgres.insert import Transaction, insert_all
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import ack_columns, settle_columns
from dayjob.model.job import JobState, id_key

Claim = tuple[bytes, int]
Settled = dict[Claim, tuple[JobState, str]]
"""The new state and the queue of each job whose claim was current, by that claim."""

_STATES = {state.value: state for state in JobState}
_LOST: tuple[JobState | None, str] = (None, "")
_DONE = (JobState.DONE, "")


async def settle(
    database: Database, ops: Sequence[SettleOp], now: int | None, token: Token | None
) -> Settled | None:
    """Apply the settlements whose claims are current, in one commit, and return these.

    None is short for: all are done, and not kept.
    """
    statements, notifier, key = database.statements, database.notifier, token_key(token)
    sent = _first_of_each(ops)
    if all(op.plain for op in sent):
        columns = ack_columns(sent)

        async def ack(connection: Connection) -> Settled | None:
            return decode(await connection.fetchval(statements["ack"], key, *columns))

        def decode(reply: Sequence[str] | None) -> Settled | None:
            if reply is None and sent is not ops:
                return {(op.key, op.epoch): _DONE for op in sent}
            return _decode(reply)

        return await database.write(token, key, ack, decode)

    follow_ups = [job for op in sent for job in op.insert]
    if not follow_ups and not any(op.kv for op in sent):

        async def settle(connection: Connection) -> Settled | None:
            return _decode(await connection.fetchval(statements["settle"], key, now, *settle_columns(sent)))

        return await database.write(token, key, settle, _decode)

    with notifier.with_commit(follow_ups) as message:

        async def settle_with_effects(connection: Connection) -> Settled | None:
            async with connection.transaction():
                transaction = Transaction(connection.fetch, statements, now, notifier.channel, message)
                reply = await _settle_with_effects(transaction, sent)
                await transaction.run("store_reply", key, reply)
            return _decode(reply)

        return await database.write(token, key, settle_with_effects, _decode, wait_for_locks=False)


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
