"""A way to the engine's own connections, each on the thread it belongs to."""

from __future__ import annotations

from typing import Any, cast

from dayjob import Broker
from dayjob.engines.sqlite.engine import SqliteEngine
from dayjob.engines.sqlite.store import Store


def _query(sql: str) -> Any:
    def run(store: Store) -> list[tuple[Any, ...]]:
        return store._cursor.execute(sql).fetchall()

    return run


async def on_writer(broker: Broker, sql: str) -> list[tuple[Any, ...]]:
    """What the statement gives on the connection that writes."""
    engine = cast("SqliteEngine", broker._engine)
    return cast("list[tuple[Any, ...]]", await engine._write(_query(sql)))


async def on_reader(broker: Broker, sql: str) -> list[tuple[Any, ...]]:
    """What the statement gives on the connection that reads."""
    engine = cast("SqliteEngine", broker._engine)
    return cast("list[tuple[Any, ...]]", await engine._read(_query(sql)))
