"""The caller's own database connection, unwrapped from SQLAlchemy or Django.

Both are found among the loaded modules and never imported: a caller with one of their objects has loaded
them.
"""

from __future__ import annotations

import sys
from typing import Any

from dayjob.errors import InvalidState


async def started(connection: Any) -> Any:
    """Return the driver's connection. Begin the transaction if SQLAlchemy has not begun it yet.

    With a synchronous connection this never waits.
    """
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session"):
        connection = await connection.connection()
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        if not connection.in_transaction():
            await connection.begin()  # Otherwise its commit does nothing: it has seen no statement.
        raw = (await connection.get_raw_connection()).driver_connection
        if type(raw).__module__.startswith("asyncpg") and not raw.is_in_transaction():
            await connection.exec_driver_sql("SELECT 1")  # The transaction begins with the first statement.
        return raw
    if _is(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        connection = connection.connection()
    if _is(connection, "sqlalchemy.engine", "Connection"):
        if not connection.in_transaction():
            connection.begin()
        return connection.connection.driver_connection
    if _is(connection, "django.utils.connection", "ConnectionProxy") or _is(
        connection, "django.db.backends.base.base", "BaseDatabaseWrapper"
    ):
        if connection.get_autocommit():
            raise InvalidState(
                f"connection {connection.alias!r} has no open transaction: enqueue in transaction.atomic()"
            )
        return connection.connection
    return connection


def is_asynchronous(connection: Any) -> bool:
    """Whether the connection can be used on an event loop only."""
    return (
        _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session", "AsyncConnection")
        or _is(connection, "asyncpg", "Connection")
        or _is(connection, "asyncpg.pool", "PoolConnectionProxy")
        or _is(connection, "psycopg", "AsyncConnection")
        or is_aiosqlite(connection)
    )


def is_aiosqlite(connection: Any) -> bool:
    return _is(connection, "aiosqlite", "Connection")


def _is(connection: Any, module: str, *names: str) -> bool:
    loaded = sys.modules.get(module)
    kinds = [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return isinstance(connection, tuple(kinds))
