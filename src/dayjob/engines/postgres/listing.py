"""Lists jobs in id order, each listing by the index that fits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import JobQuery
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import full_job
from dayjob.engines.postgres.statements import LAST_TIME, Statements
from dayjob.model.job import FINISHED, Job, JobState

_FIRST, _LAST = bytes(16), b"\xff" * 16

_RANGES = 1000
"""Up to this many pairs of queue and priority, pending jobs are merged from ranges of their index."""

_FEW = 50_000
"""Up to this many scheduled or running jobs, a listing reads and sorts all of them."""


async def get(connection: Connection, statements: Statements, keys: Sequence[bytes]) -> dict[bytes, Job]:
    found = await connection.fetch(statements["get"], list(dict.fromkeys(keys)))
    return {job.key: job for job in map(full_job, found)}


async def find(connection: Connection, statements: Statements, query: JobQuery) -> list[Job]:
    if query.state is not None and query.task is None:
        keys = await _keys(connection, statements, query, query.state)
        if keys is not None:
            jobs = await get(connection, statements, keys)
            return [jobs[key] for key in keys if key in jobs]
    parameters: list[Any] = []
    conditions: list[str] = []

    def add(condition: str, value: Any) -> None:
        if value is not None:
            parameters.append(value)
            conditions.append(condition.format(f"${len(parameters)}"))

    add("state = {}", None if query.state is None else query.state.value)
    add("queue = {}", query.queue)
    add("task = {}", query.task)
    add("id < {}" if query.newest_first else "id > {}", query.after)
    parameters.append(query.limit)
    order = f"ORDER BY id{' DESC' if query.newest_first else ''} LIMIT ${len(parameters)}"
    select = "".join([statements["find"], *(f"    AND {condition}\n" for condition in conditions), order])
    return [full_job(row) for row in await connection.fetch(select, *parameters)]


async def _keys(
    connection: Connection, statements: Statements, query: JobQuery, state: JobState
) -> list[bytes] | None:
    """Return ids of the jobs in a state, by its own index; None if walking the primary key is faster."""
    queue, after, limit = query.queue, query.after, query.limit
    if state in FINISHED:
        return await finished_keys(
            connection, statements, state, queue, after, limit, newest_first=query.newest_first
        )
    queues = None if queue is None else [queue]
    if state is JobState.PENDING:
        ranges = await connection.fetch(statements["priorities"], queues, _RANGES + 1)
        if len(ranges) > _RANGES:
            return None
        name, start = ("pending_keys_newest_first", _LAST) if query.newest_first else ("pending_keys", _FIRST)
        found = await connection.fetch(
            statements[name], [row[0] for row in ranges], [row[1] for row in ranges],
            start if after is None else after, after, limit,
        )  # fmt: skip
        return [row[0] for row in found]
    column = 2 if state is JobState.SCHEDULED else 3
    counts = await connection.fetch(statements["stats"])
    if sum(row[column] for row in counts) > _FEW:
        return None
    found = await connection.fetch(statements[f"{state.value}_keys"], queue, after, query.newest_first, limit)
    return [row[0] for row in found]


async def find_dead(
    connection: Connection, statements: Statements, queue: str | None, before: tuple[int, bytes] | None,
    limit: int,
) -> list[Job]:  # fmt: skip
    time, key = before or (LAST_TIME, _LAST)
    if queue is None:
        found = await connection.fetch(statements["latest_dead"], time, key, limit)
    else:
        found = await connection.fetch(statements["latest_dead_of_queue"], time, key, limit, queue)
    keys = [row[0] for row in found]
    jobs = await get(connection, statements, keys)
    return [jobs[key] for key in keys if key in jobs]


async def finished_keys(
    connection: Connection, statements: Statements, state: JobState, queue: str | None, after: bytes | None,
    limit: int, *, newest_first: bool = False,
) -> list[bytes]:  # fmt: skip
    """Return ids of finished jobs in id order, of one queue or of all, by the same index."""
    name, start = ("finished_keys_newest_first", _LAST) if newest_first else ("finished_keys", _FIRST)
    queues = None if queue is None else [queue]
    found = await connection.fetch(
        statements[name], state.value, queues, start if after is None else after, after, limit
    )
    return [row[0] for row in found]
