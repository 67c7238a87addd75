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
from dayjob.model.job import id_key, id_text
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
    skipped: set[bytes],
) -> bool:
    """Write documents and jobs in one commit, if all documents are as expected. Return whether they were.

    The reply to a write with jobs also has the ids of those that were not stored, for ``skipped``.
    """
    channel, key = notifier.channel, token_key(token)
    topics = {documents_topic(write.kind): None for write in writes} if announce else {}
    announcement = notifier.message(list(topics)) if topics else None
    new = [write for write in writes if write.expected is None]
    temporary = [DocumentWrite(write.kind, write.name, b"", None) for write in new if write.value is None]

    async def in_transaction(connection: Connection) -> StoredReply:
        sql = database.statements["compare_and_set"]
        try:
            async with connection.transaction():
                stored = None if jobs else key
                reply: list[str] = await connection.fetchval(
                    sql, stored, now, channel, announcement, *_columns(writes)
                )
                if reply != _WRITTEN:
                    raise _Unexpected
                if temporary:
                    await connection.fetchval(sql, None, now, channel, None, *_columns(temporary))
                if jobs:
                    transaction = Transaction(connection.fetch, database.statements, now, channel, message)
                    enqueued = zip(jobs, await insert_all(transaction, jobs), strict=True)
                    reply += [id_text(job.key) for job, each in enqueued if not each.created]
                    await transaction.run("store_reply", key, reply)
        except _Unexpected:
            await connection.execute(database.statements["store_reply"], key, _NOT_WRITTEN)
            return _NOT_WRITTEN
        return reply

    if jobs or temporary or len(new) > 1:
        with notifier.with_commit(jobs) as message:
            reply = await database.write(token, key, in_transaction, keyed=not is_plain(jobs))
    else:
        reply = await database.write_statement(
            "compare_and_set", token, now, channel, announcement, *_columns(writes)
        )
    assert reply is not None
    skipped.update(map(id_key, reply[1:]))
    return reply[0] == _WRITTEN[0]


def _columns(writes: Sequence[DocumentWrite]) -> list[list[Any]]:
    """Return the parameters of ``compare_and_set.sql`` from the fifth on."""
    return [
        [write.kind for write in writes],
        [write.name for write in writes],
        [write.expected for write in writes],
        [write.value for write in writes],
    ]
