"""Statements on the engine's own connections, each on its thread."""

from __future__ import annotations

from typing import Any, cast

from dayjob import Broker
from dayjob.engines.sqlite.engine import SqliteEngine
from dayjob.engines.sqlite.store import SqliteStore


def query(sql: str) -> Any:
    async def run(store: SqliteStore) -> list[tuple[Any, ...]]:
        return store._cursor.execute(sql).fetchall()

    return run


async def on_writer(broker: Broker, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of the statement on the writer's connection."""
    engine = cast("SqliteEngine", broker._engine)
    return cast("list[tuple[Any, ...]]", await engine._write(query(sql)))


async def on_reader(broker: Broker, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of the statement on the reader's connection."""
    engine = cast("SqliteEngine", broker._engine)
    return cast("list[tuple[Any, ...]]", await engine._read(query(sql)))
