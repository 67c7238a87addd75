"""A verb that fails leaves none of its changes, and the next one succeeds."""

from __future__ import annotations

from typing import cast

import pytest

from dayjob import Broker
from dayjob.engines.sqlite.engine import SqliteEngine
from dayjob.engines.sqlite.store import SqliteStore


async def test_a_verb_that_fails_leaves_no_change(broker: Broker) -> None:
    async def fail(store: SqliteStore) -> None:
        store._cursor.execute("INSERT INTO dayjob_kv VALUES (x'6b', x'76')")
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        await cast("SqliteEngine", broker._engine)._write(fail)
    await broker.enqueue("q")
    assert await broker.kv_get(b"k") is None
