"""Settling claims: successes that leave nothing behind in one statement, any others in another.

With follow-up jobs or values it is a transaction: they are written only for the verdicts that were
applied, and the whole batch commits at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import Struct

from dayjob import ids
from dayjob.engines.base import Contended, Insertion, Verdict
from dayjob.engines.doubts import Doubts
from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.exchange import Exchange, news_of
from dayjob.engines.postgres.inserting import Fetch, insert
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import claim_columns, verdict_columns
from dayjob.engines.postgres.statements import Statements
from dayjob.engines.postgres.tidying import Tidying
from dayjob.errors import EngineUnavailable
from dayjob.job import JobState, id_key

Claim = tuple[bytes, int]
Settled = dict[Claim, tuple[JobState, str]]
"""The new state and the queue of each job whose claim was current, by that claim."""

_STATES = {state.value: state for state in JobState}
_LOST: tuple[JobState | None, str] = (None, "")
_DONE = (JobState.DONE, "")


class Batch(Struct, frozen=True, eq=False):
    """Verdicts as they are sent."""

    token: bytes
    verdicts: Sequence[Verdict]
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

    async def settle(self, verdicts: Sequence[Verdict], now: int | None) -> Settled | None:
        """What became of the verdicts whose claims were current, if need be by a try before this one.

        None says in short that each of them is done, and has left nothing behind.
        """
        settled: Settled = {}
        for doubt in self._doubts.about(verdicts):
            settled |= in_full(doubt.verdicts, await self._apply(doubt))
            self._doubts.remove(doubt)
        left = verdicts
        if settled:
            left = [verdict for verdict in verdicts if (verdict.key, verdict.epoch) not in settled]
        if left:
            batch = Batch(ids.new_key(), once(left), now)
            try:
                applied = await self._apply(batch)
            except Contended:
                raise  # Nothing was changed, and there is no doubt about it.
            except EngineUnavailable:
                self._doubts.add(batch.verdicts, batch)
                raise
            if applied is None and batch.verdicts is verdicts:
                return None
            settled |= in_full(batch.verdicts, applied)
        return settled

    async def _apply(self, batch: Batch) -> Settled | None:
        """Apply a batch, or find out what its first try came to."""
        statements, exchange, carry = self._statements, self._exchange, self._courier.carry
        verdicts, token, now = batch.verdicts, batch.token, batch.now
        self._tidying.written()
        if all(verdict.plain for verdict in verdicts):
            claims = claim_columns(verdicts)

            async def succeed(connection: Connection) -> Sequence[str] | None:
                found: Sequence[str] | None = await connection.fetchval(statements["succeed"], token, *claims)
                return found

            answer = await carry(succeed, token=token, recall=lambda answer: answer)
            return None if answer is None else told(answer)

        follow_ups = [job for verdict in verdicts for job in verdict.insert]
        if not follow_ups and not any(verdict.kv for verdict in verdicts):

            async def without_effects(connection: Connection) -> list[str]:
                return await settle(connection.fetch, statements, verdicts, now, token)

            return told(await carry(without_effects, token=token, recall=list))

        with exchange.with_commit(news_of(follow_ups)) as news:

            async def with_effects(connection: Connection) -> list[str]:
                async with connection.transaction():
                    return await settle_with_effects(
                        connection.fetch, statements, verdicts, now, token, exchange.channel, news
                    )

            return told(await carry(with_effects, token=token, recall=list, patient=False))


def once(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """The first verdict on each claim, which is settled once."""
    if len({verdict.key for verdict in verdicts}) == len(verdicts):
        return verdicts
    first: dict[tuple[bytes, int], Verdict] = {}
    for verdict in verdicts:
        first.setdefault((verdict.key, verdict.epoch), verdict)
    return list(first.values())


def states(verdicts: Sequence[Verdict], settled: Settled) -> list[JobState | None]:
    """The answers, in order; of two verdicts on one claim, the second is late."""
    left = dict(settled)
    return [left.pop((verdict.key, verdict.epoch), _LOST)[0] for verdict in verdicts]


def told(answer: Sequence[str]) -> Settled:
    """What ``settle.sql`` answers, and ``succeed.sql`` unless it is all."""
    settled = {}
    for text in answer:
        id, epoch, state, queue = text.split(" ", 3)
        settled[id_key(id), int(epoch)] = (_STATES[state], queue)
    return settled


def in_full(verdicts: Sequence[Verdict], settled: Settled | None) -> Settled:
    """What None says in short."""
    return {(verdict.key, verdict.epoch): _DONE for verdict in verdicts} if settled is None else settled


async def settle(
    fetch: Fetch, statements: Statements, verdicts: Sequence[Verdict], now: int | None, token: bytes | None
) -> list[str]:
    """Apply verdicts without effects, in one statement."""
    found = await fetch(statements["settle"], now, token, *verdict_columns(verdicts))
    answer: list[str] = found[0][0]
    return answer


async def settle_with_effects(
    fetch: Fetch, statements: Statements, verdicts: Sequence[Verdict], now: int | None, token: bytes,
    channel: str, news: str | None,
) -> list[str]:  # fmt: skip
    """Apply verdicts and their effects, as part of a transaction that is open."""
    answer: list[str] = []
    for some in _in_steps(verdicts):
        applied = await settle(fetch, statements, some, now, None)
        answer += applied
        settled = told(applied)
        effective = [verdict for verdict in some if (verdict.key, verdict.epoch) in settled]
        await _write(fetch, statements, effective, now, channel, news)
    await fetch(statements["note"], token, answer)
    return answer


async def _write(
    fetch: Fetch, statements: Statements, verdicts: Sequence[Verdict], now: int | None, channel: str,
    news: str | None,
) -> None:  # fmt: skip
    jobs = list(chain.from_iterable(verdict.insert for verdict in verdicts))
    if any(job.kv for job in jobs):
        for verdict in verdicts:
            await _write_values_and_jobs(fetch, statements, verdict.insert, [verdict], now, channel, news)
    else:
        await _write_values_and_jobs(fetch, statements, jobs, verdicts, now, channel, news)


async def _write_values_and_jobs(
    fetch: Fetch, statements: Statements, jobs: Sequence[Insertion], verdicts: Sequence[Verdict],
    now: int | None, channel: str, news: str | None,
) -> None:  # fmt: skip
    if jobs:
        await insert(fetch, statements, jobs, now, channel, news)
    values: dict[bytes, bytes] = {}
    for verdict in verdicts:
        values |= verdict.kv or {}
    if values:
        await fetch(statements["kv_put"], list(values), list(values.values()))


def _in_steps(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """The verdicts in groups such that the order between them does not show.

    A follow-up job with a dedup key, or with the id of a job that is settled later in the batch, comes
    before what is settled after it.
    """
    steps: list[list[Verdict]] = [[]]
    later = {verdict.key for verdict in verdicts}
    for verdict in verdicts:
        steps[-1].append(verdict)
        later.discard(verdict.key)
        if any(job.dedup_key is not None or job.key in later for job in verdict.insert):
            steps.append([])
    return [step for step in steps if step]
