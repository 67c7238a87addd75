"""Writes documents: in one statement if it is all or nothing by itself, else in a transaction.

Documents are written before jobs, so a writer that waits for a document holds no job or dedup key that
another wants. The reply is stored whether it is yes or no. A repetition that finds the documents changed by
its own first try, still under way when it began, then meets the token of that try and gets its reply.
"""

from __future__ import annotations

from collections.abc import Sequence

from dayjob.engines.base import Document, DocumentWrite, Insertion, Token
from dayjob.engines.postgres.database import Database, token_key
from dayjob.engines.postgres.insert import Transaction, insert_all, is_plain
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import Row
from dayjob.runtime.signals import documents_topic

_WRITTEN, _NOT_WRITTEN = ["true"], ["false"]


class _Unexpected(Exception):
    """A document is not as expected: the transaction is rolled back."""


async def compare_and_set(
    database: Database,
    writes: Sequence[DocumentWrite],
    jobs: Sequence[Insertion],
    announce: bool,
    now: int | None,
    token: Token | None,
) -> bool:
    """Write documents and jobs in one commit, if all documents are as expected. Return whether they were."""
    statements, notifier, key = database.statements, database.notifier, token_key(token)
    kinds = dict.fromkeys(write.kind for write in writes)
    announcement = notifier.message([documents_topic(kind) for kind in kinds]) if announce and kinds else None
    new = [write for write in writes if write.expected is None]
    temporary = [DocumentWrite(write.kind, write.name, b"", None) for write in new if write.value is None]

    async def write_some(
        connection: Connection, some: Sequence[DocumentWrite], name: bytes | None, message: str | None
    ) -> bool:
        reply = await connection.fetchval(
            statements["compare_and_set"], name, now, notifier.channel, message,
            [write.kind for write in some],
            [write.name for write in some],
            [write.expected for write in some],
            [write.value for write in some],
        )  # fmt: skip
        return _decode(reply)

    async def documents_only(connection: Connection) -> bool:
        return await write_some(connection, writes, key, announcement)

    async def in_transaction(connection: Connection) -> bool:
        try:
            async with connection.transaction():
                if not await write_some(connection, writes, key, announcement):
                    raise _Unexpected
                if temporary:
                    await write_some(connection, temporary, None, None)
                if jobs:
                    transaction = Transaction(connection.fetch, statements, now, notifier.channel, message)
                    await insert_all(transaction, jobs)
        except _Unexpected:
            await connection.execute(statements["store_reply"], key, _NOT_WRITTEN)
            return False
        return True

    work = in_transaction if jobs or temporary or len(new) > 1 else documents_only
    with notifier.with_commit(jobs) as message:
        return await database.write(token, key, work, _decode, wait_for_locks=is_plain(jobs))


def _decode(reply: Sequence[str]) -> bool:
    return reply == _WRITTEN


def decode_documents(rows: Sequence[Row]) -> tuple[int, list[Document]]:
    """Decode the rows of ``documents.sql``."""
    documents = [Document(name, value, written) for _, name, value, written in rows if name is not None]
    return rows[0][0], documents
