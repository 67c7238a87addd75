"""Storing jobs: in one statement where nothing can be in the way, else in a transaction of several.

Keyed jobs are stored after the others and in the order of queue and key, so that two batches that want
the same keys never wait for one another in a circle. A key that another open transaction holds is waited
for only as long as the connection's ``lock_timeout``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dayjob.engines.base import Insertion
from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.exchange import Exchange, news_of
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import insertion_columns
from dayjob.engines.postgres.statements import Statements
from dayjob.engines.postgres.tidying import Tidying
from dayjob.model.job import Enqueued, id_text
from dayjob.runtime import ids

Fetch = Callable[..., Awaitable[Sequence[Sequence[Any]]]]
"""Runs a statement with its parameters on a connection of whichever kind, and gives its rows."""

_TRIES = 20


class Inserting:
    """Stores the jobs of one engine, each batch in one commit."""

    def __init__(
        self, courier: Courier, statements: Statements, exchange: Exchange, tidying: Tidying
    ) -> None:
        self._courier = courier
        self._statements = statements
        self._exchange = exchange
        self._tidying = tidying

    async def insert(self, jobs: Sequence[Insertion], now: int | None) -> list[Enqueued]:
        self._tidying.written()
        with self._exchange.with_commit(news_of(jobs)) as news:
            return await self._insert(jobs, now, news)

    async def _insert(self, jobs: Sequence[Insertion], now: int | None, news: str | None) -> list[Enqueued]:
        statements, channel, token = self._statements, self._exchange.channel, ids.new_key()

        async def plain(connection: Connection) -> list[Enqueued]:
            return await insert_plain(connection.fetch, statements, jobs, now, token, channel, news)

        async def one(connection: Connection) -> list[Enqueued]:
            return await insert_one(connection.fetch, statements, jobs[0], now, token, channel, news)

        async def several(connection: Connection) -> list[Enqueued]:
            async with connection.transaction():
                told = await insert(connection.fetch, statements, jobs, now, channel, news)
                await connection.execute(statements["note"], token, noted(told))
            return told

        carry = self._courier.carry
        if is_plain(jobs):
            return await carry(plain, token=token, recall=lambda stored: answers(jobs, stored))
        if len(jobs) == 1 and not jobs[0].kv:
            stored = [Enqueued(id_text(jobs[0].key), True)]
            return await carry(one, token=token, recall=lambda _: stored, patient=False)
        return await carry(several, token=token, recall=recalled, patient=False)


def is_plain(jobs: Sequence[Insertion]) -> bool:
    """Whether one statement stores them: no keys, and no values to be written for those that are new."""
    return all(job.dedup_key is None and not job.kv for job in jobs)


async def insert_plain(
    fetch: Fetch, statements: Statements, jobs: Sequence[Insertion], now: int | None, token: bytes,
    channel: str, news: str | None,
) -> list[Enqueued]:  # fmt: skip
    """Store jobs without keys, in one statement that commits by itself."""
    found = await fetch(statements["insert"], now, token, channel, news, *insertion_columns(jobs))
    return answers(jobs, found[0][0])


def answers(jobs: Sequence[Insertion], stored: Sequence[str] | None) -> list[Enqueued]:
    """The answers for jobs without keys: all were stored (None), or those with the ids given."""
    if stored is None:
        return [Enqueued(id_text(job.key), True) for job in jobs]
    new = set(stored)
    told = []
    for job in jobs:
        id = id_text(job.key)
        told.append(Enqueued(id, id in new))
        new.discard(id)
    return told


async def insert_one(
    fetch: Fetch, statements: Statements, job: Insertion, now: int | None, token: bytes, channel: str,
    news: str | None,
) -> list[Enqueued]:  # fmt: skip
    """Store one job that may have a key, in one statement that commits by itself; ask who is in its way."""
    told = await _store(fetch, statements, [(0, job)], now, token, channel, news)
    return [told[0]]


async def insert(
    fetch: Fetch, statements: Statements, jobs: Sequence[Insertion], now: int | None, channel: str,
    news: str | None,
) -> list[Enqueued]:  # fmt: skip
    """Store any jobs, with their values, as part of a transaction that is open."""
    told: dict[int, Enqueued] = {}
    for some in _in_order(jobs):
        chosen = [(place, jobs[place]) for place in some]
        told |= await _store(fetch, statements, chosen, now, None, channel, news)
    in_order = [told[place] for place in range(len(jobs))]
    values: dict[bytes, bytes] = {}
    for job, answer in zip(jobs, in_order, strict=True):
        if answer.created and job.kv:
            values |= job.kv
    if values:
        await fetch(statements["kv_put"], list(values), list(values.values()))
    return in_order


def _in_order(jobs: Sequence[Insertion]) -> list[list[int]]:
    """The places of the jobs, in the groups and the order in which they are to be stored."""
    if len({job.key for job in jobs}) < len(jobs):
        return [[place] for place in range(len(jobs))]  # The same id twice: one by one, the first wins.
    plain = [place for place, job in enumerate(jobs) if job.dedup_key is None]
    keyed = [place for place, job in enumerate(jobs) if job.dedup_key is not None]
    keyed.sort(key=lambda place: (jobs[place].queue, jobs[place].dedup_key or ""))
    return [places for places in (plain, keyed) if places]


async def _store(
    fetch: Fetch, statements: Statements, jobs: Sequence[tuple[int, Insertion]], now: int | None,
    token: bytes | None, channel: str, news: str | None,
) -> dict[int, Enqueued]:  # fmt: skip
    """Store the jobs or find out what is in their way, again if it was gone when we looked."""
    told: dict[int, Enqueued] = {}
    left = list(jobs)
    for _ in range(_TRIES):
        columns = insertion_columns([job for _, job in left])
        stored = (await fetch(statements["insert"], now, token, channel, news, *columns))[0][0]
        if stored is None:
            return told | {place: Enqueued(id_text(job.key), True) for place, job in left}
        new = set(stored)
        refused = [(place, job) for place, job in left if id_text(job.key) not in new]
        told |= {place: Enqueued(id_text(job.key), True) for place, job in left if id_text(job.key) in new}
        holders = await _refused(fetch, statements, [job for _, job in refused])
        told |= {place: Enqueued(holders[job.key], False) for place, job in refused if job.key in holders}
        left = [(place, job) for place, job in refused if job.key not in holders]
        if not left:
            return told
    raise RuntimeError(f"dedup keys come and go faster than they can be told: {left[0][1].dedup_key!r}")


async def _refused(fetch: Fetch, statements: Statements, jobs: Sequence[Insertion]) -> dict[bytes, str]:
    """For each job that can't be stored the id to answer with: its own, if it exists, or the key's holder."""
    found = await fetch(
        statements["refused"],
        [id_text(job.key) for job in jobs],
        [job.queue for job in jobs],
        [job.dedup_key for job in jobs],
    )
    return {
        job.key: id if exists else holder
        for job, (id, exists, holder) in zip(jobs, found, strict=True)
        if exists or holder is not None
    }


def noted(answers: Sequence[Enqueued]) -> list[str]:
    """Answers as they are kept with their batch."""
    return [f"{answer.id} {answer.created:d}" for answer in answers]


def recalled(texts: Sequence[str]) -> list[Enqueued]:
    return [Enqueued(text[:36], text[37:] == "1") for text in texts]
