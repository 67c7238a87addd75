"""Statements on the caller's own connection, inside its open transaction, with any supported driver."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import asyncpg

from dayjob.engines.caller_connection import started
from dayjob.engines.postgres.rows import Rows
from dayjob.engines.postgres.writes import Fetch
from dayjob.errors import InvalidState

_ACCEPTED = (
    "pass one of psycopg 3 (sync or async) or asyncpg, or a Session, AsyncSession, Connection or "
    "AsyncConnection of SQLAlchemy, or the connection of Django, on one of these"
)


async def caller_fetch(connection: Any) -> Fetch:
    """Return a function that runs statements there. With a synchronous connection it never waits."""
    raw = await started(connection)
    driver = type(raw).__module__.partition(".")[0]
    if driver == "asyncpg":
        if isinstance(raw, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            if not raw.is_in_transaction():
                raise _no_transaction(connection)
            return cast(Fetch, raw.fetch)
    elif driver == "psycopg":
        psycopg = import_module("psycopg")
        if not isinstance(raw, psycopg.Connection | psycopg.AsyncConnection):
            raise _unusable(connection)
        if raw.autocommit and raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise _no_transaction(connection)
        fetch = _psycopg_async if isinstance(raw, psycopg.AsyncConnection) else _psycopg
        return fetch(raw, psycopg)
    raise _unusable(connection)


def _unusable(connection: Any) -> TypeError:
    return TypeError(f"connection={connection!r} can't be used: {_ACCEPTED}")


def _no_transaction(connection: Any) -> InvalidState:
    return InvalidState(f"{connection!r} has no open transaction: begin one first, then enqueue inside it")


def _psycopg(raw: Any, psycopg: Any) -> Fetch:
    async def fetch(sql: str, *parameters: Any) -> Rows:
        with psycopg.RawCursor(raw, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(sql, parameters)
            found: Rows = cursor.fetchall() if cursor.description else []
            return found

    return fetch


def _psycopg_async(raw: Any, psycopg: Any) -> Fetch:
    async def fetch(sql: str, *parameters: Any) -> Rows:
        async with psycopg.AsyncRawCursor(raw, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(sql, parameters)
            found: Rows = await cursor.fetchall() if cursor.description else []
            return found

    return fetch
