"""Writing notes: by one statement where it changes all or nothing by itself, else in a transaction.

The notes come before the jobs, so whoever waits for a note has no job or dedup key that another wants.
The answer is stored under the batch's token whether it is yes or no: a retry that finds the notes
changed by its own first try, still under way when it began, meets that token and gets that answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from dayjob.engines.base import Document, DocumentWrite, Insertion
from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.exchange import Exchange, news_of
from dayjob.engines.postgres.inserting import insert, is_plain
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import Row
from dayjob.engines.postgres.statements import Statements
from dayjob.engines.postgres.tidying import Tidying
from dayjob.runtime import ids
from dayjob.runtime.signals import documents_topic

_NO = ["false"]


class _Unexpected(Exception):
    """A note is not as expected: what the transaction has written is undone."""


class Noting:
    """Writes the notes of one engine, each batch in one commit."""

    def __init__(
        self, courier: Courier, statements: Statements, exchange: Exchange, tidying: Tidying
    ) -> None:
        self._courier = courier
        self._statements = statements
        self._exchange = exchange
        self._tidying = tidying

    async def write(
        self, writes: Sequence[DocumentWrite], jobs: Sequence[Insertion], announce: bool, now: int | None
    ) -> bool:
        statements, exchange, token = self._statements, self._exchange, ids.new_key()
        kinds = dict.fromkeys(write.kind for write in writes)
        news = exchange.message([documents_topic(kind) for kind in kinds]) if announce and kinds else None
        new = [write for write in writes if write.expected is None]
        passing = [DocumentWrite(write.kind, write.name, b"", None) for write in new if write.value is None]

        async def write_some(
            connection: Connection, some: Sequence[DocumentWrite], token: bytes | None, news: str | None
        ) -> bool:
            written: bool = await connection.fetchval(
                statements["write_notes"], now, token, exchange.channel, news,
                [write.kind for write in some],
                [write.name for write in some],
                [write.expected for write in some],
                [write.value for write in some],
            )  # fmt: skip
            return written

        async def alone(connection: Connection) -> bool:
            return await write_some(connection, writes, token, news)

        async def with_others(connection: Connection) -> bool:
            try:
                async with connection.transaction():
                    if not await write_some(connection, writes, token, news):
                        raise _Unexpected
                    if passing:
                        await write_some(connection, passing, None, None)
                    if jobs:
                        await insert(connection.fetch, statements, jobs, now, exchange.channel, news_of_jobs)
            except _Unexpected:
                await connection.execute(statements["note"], token, _NO)
                return False
            return True

        if jobs:
            self._tidying.written()
        work = with_others if jobs or passing or len(new) > 1 else alone
        with exchange.with_commit(news_of(jobs)) as news_of_jobs:
            return await self._courier.carry(
                work, token=token, recall=lambda answer: answer != _NO, patient=is_plain(jobs)
            )


def told(rows: Sequence[Row]) -> tuple[int, list[Document]]:
    """What ``notes.sql`` answers."""
    documents = [Document(name, value, written) for _, name, value, written in rows if name is not None]
    return rows[0][0], documents
