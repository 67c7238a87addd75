"""Lists jobs in id order, each listing by the index that fits it."""

from __future__ import annotations

from functools import cache
from typing import Any

from dayjob.engines.base import Death, JobQuery
from dayjob.engines.postgres.database import Connection, Database
from dayjob.engines.postgres.scan_hints import FIRST_ID, LAST_ID
from dayjob.engines.postgres.statements import LAST_TIME
from dayjob.model.job import FINISHED, JobState

_RANGES = 1000
"""Up to this many pairs of queue and priority, pending jobs are merged from ranges of their index."""

_FEW = 50_000
"""Up to this many scheduled, limited or running jobs, a listing reads and sorts all of them."""

_COUNTS = {JobState.SCHEDULED: 2, JobState.RUNNING: 3, JobState.LIMITED: 7}
"""The columns of ``stats.sql``."""


async def find_rows(database: Database, query: JobQuery) -> list[Any]:
    """Return the rows of jobs by the primary key, with the conditions of the query."""
    given = {
        "state =": None if query.state is None else query.state.value,
        "queue =": query.queue,
        "task =": query.task,
        "id <" if query.newest_first else "id >": query.after,
    }
    wanted = {condition: value for condition, value in given.items() if value is not None}
    conditions = [f"    AND {condition} ${number}\n" for number, condition in enumerate(wanted, 1)]
    order = f"ORDER BY id{' DESC' if query.newest_first else ''} LIMIT ${len(wanted) + 1}"
    select = "".join([database.statements["find"], *conditions, order])
    return await database.read(lambda connection: connection.fetch(select, *wanted.values(), query.limit))


async def find_keys(database: Database, query: JobQuery) -> list[bytes] | None:
    """Return ids of the jobs in a state, by its own index; None if walking the primary key is faster."""
    state, queue, after, limit = query.state, query.queue, query.after, query.limit
    if state is None or query.task is not None:
        return None
    if state in FINISHED:
        return await finished_keys(database, state, queue, after, limit, newest_first=query.newest_first)

    async def find(connection: Connection) -> list[bytes] | None:
        statements = database.statements
        if state is JobState.PENDING:
            queues = None if queue is None else [queue]
            ranges = await connection.fetch(statements["priorities"], queues, _RANGES + 1)
            if len(ranges) > _RANGES:
                return None
            sql, start = _directed(statements["pending_keys"], query.newest_first)
            found = await connection.fetch(
                sql, *([row[column] for row in ranges] for column in range(3)),
                start if after is None else after, after, limit,
            )  # fmt: skip
            return [row[0] for row in found]
        column = _COUNTS[state]
        counts = await connection.fetch(statements["stats"])
        if sum(row[column] for row in counts) > _FEW:
            return None
        sql = statements[f"{state.value}_keys"]
        return [row[0] for row in await connection.fetch(sql, queue, after, query.newest_first, limit)]

    return await database.read(find)


async def dead_keys(database: Database, queue: str | None, before: Death | None, limit: int) -> list[bytes]:
    """Return ids of dead jobs, the latest failure first."""
    time, key = before or (LAST_TIME, LAST_ID)
    if queue is None:
        found = await database.fetch("latest_dead", time, key, limit)
    else:
        found = await database.fetch("latest_dead_of_queue", time, key, limit, queue)
    return [row[0] for row in found]


async def finished_keys(
    database: Database, state: JobState, queue: str | None, after: bytes | None, limit: int, *,
    newest_first: bool = False,
) -> list[bytes]:  # fmt: skip
    """Return ids of finished jobs in id order, of one queue or of all, by the same index."""
    sql, start = _directed(database.statements["finished_keys"], newest_first)
    queues = None if queue is None else [queue]
    first = start if after is None else after
    found = await database.read(
        lambda connection: connection.fetch(sql, state.value, queues, first, after, limit)
    )
    return [row[0] for row in found]


def _directed(sql: str, newest_first: bool) -> tuple[str, bytes]:
    """Return a statement in the direction of travel, and the id at which it starts without a cursor."""
    return (newest_first_sql(sql), LAST_ID) if newest_first else (sql, FIRST_ID)


@cache
def newest_first_sql(sql: str) -> str:
    """Return the statement in the other direction: comparisons and orders are reversed."""
    header, body = sql.split("\n", 1)
    reversed = body.translate(str.maketrans("<>", "><")).replace(" ASC", " DESC")
    return f"{header} The newest first.\n{reversed}"
