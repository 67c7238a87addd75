"""Writes documents: in one statement if it is all or nothing by itself, else in a transaction.

Documents are written before jobs, so a writer that waits for a document holds no job or dedup key that
another wants. The reply is stored whether it is yes or no. A repetition that finds the documents changed by
its own first try, still under way when it began, then finds the token of that try and returns its reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import DocumentWrite, Insertion, Token
from dayjob.engines.postgres.database import Connection, Database, StoredReply, token_key
from dayjob.engines.postgres.insert import Transaction, insert_all, is_plain
from dayjob.engines.postgres.notifier import Notifier
from dayjob.runtime.signals import documents_topic

_WRITTEN, _NOT_WRITTEN = ["true"], ["false"]


class _Unexpected(Exception):
    """A document is not as expected: the transaction is rolled back."""


async def compare_and_set(
    database: Database,
    notifier: Notifier,
    writes: Sequence[DocumentWrite],
    jobs: Sequence[Insertion],
    announce: bool,
    now: int | None,
    token: Token | None,
) -> bool:
    """Write documents and jobs in one commit, if all documents are as expected. Return whether they were."""
    channel, key = notifier.channel, token_key(token)
    topics = {documents_topic(write.kind): None for write in writes} if announce else {}
    announcement = notifier.message(list(topics)) if topics else None
    new = [write for write in writes if write.expected is None]
    temporary = [DocumentWrite(write.kind, write.name, b"", None) for write in new if write.value is None]

    async def in_transaction(connection: Connection) -> StoredReply:
        sql = database.statements["compare_and_set"]
        try:
            async with connection.transaction():
                reply = await connection.fetchval(sql, key, now, channel, announcement, *_columns(writes))
                if reply != _WRITTEN:
                    raise _Unexpected
                if temporary:
                    await connection.fetchval(sql, None, now, channel, None, *_columns(temporary))
                if jobs:
                    transaction = Transaction(connection.fetch, database.statements, now, channel, message)
                    await insert_all(transaction, jobs)
        except _Unexpected:
            await connection.execute(database.statements["store_reply"], key, _NOT_WRITTEN)
            return _NOT_WRITTEN
        return _WRITTEN

    if jobs or temporary or len(new) > 1:
        with notifier.with_commit(jobs) as message:
            reply = await database.write(token, key, in_transaction, keyed=not is_plain(jobs))
    else:
        reply = await database.write_statement(
            "compare_and_set", token, now, channel, announcement, *_columns(writes)
        )
    return reply == _WRITTEN


def _columns(writes: Sequence[DocumentWrite]) -> list[list[Any]]:
    """Return the parameters of ``compare_and_set.sql`` from the fifth on."""
    return [
        [write.kind for write in writes],
        [write.name for write in writes],
        [write.expected for write in writes],
        [write.value for write in writes],
    ]
