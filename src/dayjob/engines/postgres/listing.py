"""Looking at jobs in id order: each listing by the index that fits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import JobQuery
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.rows import full_job
from dayjob.engines.postgres.statements import Statements
from dayjob.model.job import FINISHED, Job, JobState

_FIRST, _LAST = bytes(16), b"\xff" * 16
_NO_TIME_LATER = 2**63 - 1

_RUNS = 1000
"""Up to this many pairs of queue and priority, listings of pending jobs are merged from their runs."""

_FEW = 50_000
"""Up to this many jobs in a state, listing them sorts the state's own index."""


async def get(connection: Connection, statements: Statements, keys: Sequence[bytes]) -> dict[bytes, Job]:
    found = await connection.fetch(statements["get"], list(dict.fromkeys(keys)))
    return {row[0]: full_job(row) for row in found}


async def find(connection: Connection, statements: Statements, listing: JobQuery) -> list[Job]:
    if listing.state is not None and listing.task is None:
        keys = await _keys(connection, statements, listing, listing.state)
        if keys is not None:
            jobs = await get(connection, statements, keys)
            return [jobs[key] for key in keys if key in jobs]
    parameters: list[Any] = []
    conditions: list[str] = []

    def add(condition: str, value: Any) -> None:
        if value is not None:
            parameters.append(value)
            conditions.append(condition.format(f"${len(parameters)}"))

    add("state = {}", None if listing.state is None else listing.state.value)
    add("queue = {}", listing.queue)
    add("task = {}", listing.task)
    add("id < {}" if listing.newest_first else "id > {}", listing.after)
    parameters.append(listing.limit)
    order = f"ORDER BY id{' DESC' if listing.newest_first else ''} LIMIT ${len(parameters)}"
    select = "".join([statements["find"], *(f"    AND {condition}\n" for condition in conditions), order])
    return [full_job(row) for row in await connection.fetch(select, *parameters)]


async def _keys(
    connection: Connection, statements: Statements, listing: JobQuery, state: JobState
) -> list[bytes] | None:
    """Ids of the jobs in a state, by the state's own index; None if walking the ids is the better way."""
    queue, after, limit = listing.queue, listing.after, listing.limit
    if state in FINISHED:
        return await finished_keys(
            connection, statements, state, queue, after, limit, newest_first=listing.newest_first
        )
    queues = None if queue is None else [queue]
    if state is JobState.PENDING:
        runs = await connection.fetch(statements["runs"], queues, _RUNS + 1)
        if len(runs) > _RUNS:
            return None
        name, start = (
            ("pending_keys_newest_first", _LAST) if listing.newest_first else ("pending_keys", _FIRST)
        )
        found = await connection.fetch(
            statements[name], [row[0] for row in runs], [row[1] for row in runs],
            start if after is None else after, after, limit,
        )  # fmt: skip
        return [row[0] for row in found]
    column = 2 if state is JobState.SCHEDULED else 3
    counts = await connection.fetch(statements["stats"])
    if sum(row[column] for row in counts) > _FEW:
        return None
    found = await connection.fetch(
        statements[f"{state.value}_keys"], queue, after, listing.newest_first, limit
    )
    return [row[0] for row in found]


async def find_dead(
    connection: Connection, statements: Statements, queue: str | None, before: tuple[int, bytes] | None,
    limit: int,
) -> list[Job]:  # fmt: skip
    time, key = before or (_NO_TIME_LATER, _LAST)
    if queue is None:
        found = await connection.fetch(statements["latest_dead"], time, key, limit)
    else:
        found = await connection.fetch(statements["latest_dead_of"], time, key, limit, queue)
    keys = [row[0] for row in found]
    jobs = await get(connection, statements, keys)
    return [jobs[key] for key in keys if key in jobs]


async def finished_keys(
    connection: Connection, statements: Statements, state: JobState, queue: str | None, after: bytes | None,
    limit: int, *, newest_first: bool = False,
) -> list[bytes]:  # fmt: skip
    """Ids of finished jobs in id order, with and without a queue by the same index."""
    name, start = ("finished_keys_newest_first", _LAST) if newest_first else ("finished_keys", _FIRST)
    queues = None if queue is None else [queue]
    found = await connection.fetch(
        statements[name], state.value, queues, start if after is None else after, after, limit
    )
    return [row[0] for row in found]
