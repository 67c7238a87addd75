"""Settling claims: successes that leave nothing behind in one statement, any others in another.

With follow-up jobs or values it is a transaction: they are written only for the verdicts that were
applied, and the whole batch commits at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import Struct

from dayjob.engines.base import Contended, Insertion, SettleOp
from dayjob.engines.doubts import Doubts
from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.exchange import Exchange, news_of
from dayjob.engines.postgres.inserting import Fetch, insert
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import claim_columns, verdict_columns
from dayjob.engines.postgres.statements import Statements
from dayjob.engines.postgres.tidying import Tidying
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
    """Verdicts as they are sent."""

    token: bytes
    ops: Sequence[SettleOp]
    now: int | None


class Settling:
    """Settles the claims of one engine, each batch in one commit."""

    def __init__(
        self, courier: Courier, statements: Statements, exchange: Exchange, tidying: Tidying
    ) -> None:
        self._courier = courier
        self._statements = statements
        self._exchange = exchange
        self._tidying = tidying
        self._doubts = Doubts[Batch]()

    async def settle(self, ops: Sequence[SettleOp], now: int | None) -> Settled | None:
        """What became of the verdicts whose claims were current, if need be by a try before this one.

        None says in short that each of them is done, and has left nothing behind.
        """
        settled: Settled = {}
        for doubt in self._doubts.about(ops):
            settled |= in_full(doubt.ops, await self._apply(doubt))
            self._doubts.remove(doubt)
        left = ops
        if settled:
            left = [op for op in ops if (op.key, op.epoch) not in settled]
        if left:
            batch = Batch(ids.new_key(), once(left), now)
            try:
                applied = await self._apply(batch)
            except Contended:
                raise  # Nothing was changed, and there is no doubt about it.
            except EngineUnavailable:
                self._doubts.add(batch.ops, batch)
                raise
            if applied is None and batch.ops is ops:
                return None
            settled |= in_full(batch.ops, applied)
        return settled

    async def _apply(self, batch: Batch) -> Settled | None:
        """Apply a batch, or find out what its first try came to."""
        statements, exchange, carry = self._statements, self._exchange, self._courier.carry
        ops, token, now = batch.ops, batch.token, batch.now
        self._tidying.written()
        if all(op.plain for op in ops):
            claims = claim_columns(ops)

            async def succeed(connection: Connection) -> Sequence[str] | None:
                found: Sequence[str] | None = await connection.fetchval(statements["succeed"], token, *claims)
                return found

            answer = await carry(succeed, token=token, recall=lambda answer: answer)
            return None if answer is None else told(answer)

        follow_ups = [job for op in ops for job in op.insert]
        if not follow_ups and not any(op.kv for op in ops):

            async def without_effects(connection: Connection) -> list[str]:
                return await settle(connection.fetch, statements, ops, now, token)

            return told(await carry(without_effects, token=token, recall=list))

        with exchange.with_commit(news_of(follow_ups)) as news:

            async def with_effects(connection: Connection) -> list[str]:
                async with connection.transaction():
                    return await settle_with_effects(
                        connection.fetch, statements, ops, now, token, exchange.channel, news
                    )

            return told(await carry(with_effects, token=token, recall=list, patient=False))


def once(ops: Sequence[SettleOp]) -> Sequence[SettleOp]:
    """The first verdict on each claim, which is settled once."""
    if len({op.key for op in ops}) == len(ops):
        return ops
    first: dict[tuple[bytes, int], SettleOp] = {}
    for op in ops:
        first.setdefault((op.key, op.epoch), op)
    return list(first.values())


def states(ops: Sequence[SettleOp], settled: Settled) -> list[JobState | None]:
    """The answers, in order; of two verdicts on one claim, the second is late."""
    left = dict(settled)
    return [left.pop((op.key, op.epoch), _LOST)[0] for op in ops]


def told(answer: Sequence[str]) -> Settled:
    """What ``settle.sql`` answers, and ``succeed.sql`` unless it is all."""
    settled = {}
    for text in answer:
        id, epoch, state, queue = text.split(" ", 3)
        settled[id_key(id), int(epoch)] = (_STATES[state], queue)
    return settled


def in_full(ops: Sequence[SettleOp], settled: Settled | None) -> Settled:
    """What None says in short."""
    return {(op.key, op.epoch): _DONE for op in ops} if settled is None else settled


async def settle(
    fetch: Fetch, statements: Statements, ops: Sequence[SettleOp], now: int | None, token: bytes | None
) -> list[str]:
    """Apply verdicts without effects, in one statement."""
    found = await fetch(statements["settle"], now, token, *verdict_columns(ops))
    answer: list[str] = found[0][0]
    return answer


async def settle_with_effects(
    fetch: Fetch, statements: Statements, ops: Sequence[SettleOp], now: int | None, token: bytes,
    channel: str, news: str | None,
) -> list[str]:  # fmt: skip
    """Apply verdicts and their effects, as part of a transaction that is open."""
    answer: list[str] = []
    for some in _in_steps(ops):
        applied = await settle(fetch, statements, some, now, None)
        answer += applied
        settled = told(applied)
        effective = [op for op in some if (op.key, op.epoch) in settled]
        await _write(fetch, statements, effective, now, channel, news)
    await fetch(statements["note"], token, answer)
    return answer


async def _write(
    fetch: Fetch, statements: Statements, ops: Sequence[SettleOp], now: int | None, channel: str,
    news: str | None,
) -> None:  # fmt: skip
    jobs = list(chain.from_iterable(op.insert for op in ops))
    if any(job.kv for job in jobs):
        for op in ops:
            await _write_values_and_jobs(fetch, statements, op.insert, [op], now, channel, news)
    else:
        await _write_values_and_jobs(fetch, statements, jobs, ops, now, channel, news)


async def _write_values_and_jobs(
    fetch: Fetch, statements: Statements, jobs: Sequence[Insertion], ops: Sequence[SettleOp],
    now: int | None, channel: str, news: str | None,
) -> None:  # fmt: skip
    if jobs:
        await insert(fetch, statements, jobs, now, channel, news)
    values: dict[bytes, bytes] = {}
    for op in ops:
        values |= op.kv or {}
    if values:
        await fetch(statements["kv_put"], list(values), list(values.values()))


def _in_steps(ops: Sequence[SettleOp]) -> list[list[SettleOp]]:
    """The verdicts in groups such that the order between them does not show.

    A follow-up job with a dedup key, or with the id of a job that is settled later in the batch, comes
    before what is settled after it.
    """
    steps: list[list[SettleOp]] = [[]]
    later = {op.key for op in ops}
    for op in ops:
        steps[-1].append(op)
        later.discard(op.key)
        if any(job.dedup_key is not None or job.key in later for job in op.insert):
            steps.append([])
    return [step for step in steps if step]
