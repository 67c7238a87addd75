"""A caller's own database connection, taken out of what it is wrapped in.

SQLAlchemy is known by its loaded modules and never imported: whoever passes one of its objects has it.
"""

from __future__ import annotations

import sys
from typing import Any


async def started(connection: Any) -> Any:
    """The driver's connection, its transaction begun if it is SQLAlchemy's to begin.

    With a synchronous connection this never waits.
    """
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session"):
        connection = await connection.connection()
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        if not connection.in_transaction():
            await connection.begin()  # Or its commit would be none: it knows of no statement.
        raw = (await connection.get_raw_connection()).driver_connection
        if type(raw).__module__.startswith("asyncpg") and not raw.is_in_transaction():
            await connection.exec_driver_sql("SELECT 1")  # It begins with the first statement, not before.
        return raw
    if _is(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        connection = connection.connection()
    if _is(connection, "sqlalchemy.engine", "Connection"):
        if not connection.in_transaction():
            connection.begin()
        return connection.connection.driver_connection
    return connection


def is_asynchronous(connection: Any) -> bool:
    """Whether nothing can be done with it but on an event loop."""
    return (
        _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session", "AsyncConnection")
        or _is(connection, "asyncpg", "Connection")
        or _is(connection, "asyncpg.pool", "PoolConnectionProxy")
        or _is(connection, "psycopg", "AsyncConnection")
    )


def _is(connection: Any, module: str, *names: str) -> bool:
    loaded = sys.modules.get(module)
    kinds = [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return isinstance(connection, tuple(kinds))
