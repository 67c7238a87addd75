"""Settles claims: acks of jobs that are not kept in one statement, other settlements in another.

Settlements with follow-up jobs or kv writes take a transaction. The effects are written only for those that
were applied, and the whole batch commits at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from dayjob.engines.base import SettleOp, Token
from dayjob.engines.postgres.database import Connection, Database, StoredReply, token_key
from dayjob.engines.postgres.insert import Transaction, insert_all, is_plain
from dayjob.engines.postgres.notifier import Notifier
from dayjob.engines.postgres.rows import ack_columns, in_lock_order, settle_columns
from dayjob.model.job import FINISHED, JobState, id_key, id_text
from dayjob.runtime.signals import DUE

Claim = tuple[bytes, bytes]
Settled = dict[Claim, tuple[JobState, str]]
"""The new state and the queue of each job whose claim was current, by that claim."""

_STATES = {state.value: state for state in JobState}
_LOST: tuple[JobState | None, str] = (None, "")
_DONE = (JobState.DONE, "")
_SKIPPED = "-"
"""Marks the id of a follow-up job that was not stored, in a reply."""


async def settle(
    database: Database,
    notifier: Notifier,
    ops: Sequence[SettleOp],
    now: int | None,
    token: Token | None,
    skipped: set[bytes],
) -> list[JobState | None]:
    """Apply the settlements whose claims are current, in one commit. A second one of a claim is lost.

    The keys of follow-up jobs that were not stored are added to ``skipped``.
    """
    sent = ops
    if len({op.key for op in ops}) < len(ops):
        first: dict[Claim, SettleOp] = {}
        for op in ops:
            first.setdefault((op.key, op.claim), op)
        sent = list(first.values())
    if all(op.plain for op in sent):
        sent = in_lock_order(sent)
        reply = await database.write_statement("ack", token, *ack_columns(sent))
        if reply is None and len(sent) == len(ops):
            notifier.jobs_finished([op.key for op in ops])
            return [JobState.DONE] * len(ops)
    elif not any(op.insert or op.kv for op in sent):
        reply = await database.write_statement("settle", token, now, *settle_columns(sent))
    else:
        stored = await _settle_with_effects(database, notifier, sent, now, token)
        reply = None if stored is None else [text for text in stored if text[0] != _SKIPPED]
        skipped.update(id_key(text[1:]) for text in stored or () if text[0] == _SKIPPED)
    settled = {(op.key, op.claim): _DONE for op in sent} if reply is None else _decode(reply, sent)
    notifier.jobs_finished([key for (key, _), (state, _) in settled.items() if state in FINISHED])
    if any(state not in FINISHED for state, _ in settled.values()):
        notifier.jobs_returned({queue for state, queue in settled.values() if state is JobState.PENDING})
        if any(state is JobState.SCHEDULED for state, _ in settled.values()):
            notifier.publish([DUE])
    for op in ops:
        if op.insert:
            notifier.jobs_inserted(op.insert)
    return [settled.pop((op.key, op.claim), _LOST)[0] for op in ops]


def _decode(reply: Sequence[str], sent: Sequence[SettleOp]) -> Settled:
    """Decode the reply of ``settle.sql`` or ``ack.sql`` to these settlements."""
    settled = {}
    for text in reply:
        number, state, queue = text.split(" ", 2)
        op = sent[int(number) - 1]
        settled[op.key, op.claim] = (_STATES[state], queue)
    return settled


async def _settle_with_effects(
    database: Database, notifier: Notifier, ops: Sequence[SettleOp], now: int | None, token: Token | None
) -> StoredReply:
    """Apply settlements and their effects in one transaction."""
    key = token_key(token)

    async def run(connection: Connection) -> StoredReply:
        reply: list[str] = []
        first = 1
        async with connection.transaction():
            transaction = Transaction(connection.fetch, database.statements, now, notifier.channel, message)
            for step in _in_steps(ops):
                found = await transaction.run("settle", None, now, *settle_columns(step, first))
                first += len(step)
                reply += found[0][0]
                settled = _decode(found[0][0], ops)
                applied = [op for op in step if (op.key, op.claim) in settled]
                reply += [_SKIPPED + id for id in await _write_effects(transaction, applied)]
            await transaction.run("store_reply", key, reply)
        return reply

    keyed = any(op.kv or not is_plain(op.insert) for op in ops)
    with notifier.with_commit([job for op in ops for job in op.insert]) as message:
        return await database.write(token, key, run, keyed=keyed)


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
