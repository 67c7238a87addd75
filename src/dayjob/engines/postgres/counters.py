"""Keeps two tables small that only grow: the rows of counters, and the stored replies."""

from __future__ import annotations

import asyncio
from typing import Any

from dayjob.engines.postgres.pool import Connection, Pool
from dayjob.engines.postgres.statements import Statements
from dayjob.errors import EngineUnavailable
from dayjob.model.durations import SECOND

FEW = 2000
"""Rows of counters that are left alone."""

_BATCH = 20_000
_REPLY_RETENTION = 600 * SECOND


class Counters:
    """Folds counters in the background, when this process has written or read many rows."""

    def __init__(self, pool: Pool, statements: Statements) -> None:
        self._pool = pool
        self._statements = statements
        self._written = 0
        self._folding: asyncio.Task[None] | None = None

    def row_written(self) -> None:
        """Count a commit that added a row."""
        self._written += 1
        self.rows_read(self._written)

    def rows_read(self, rows: int) -> None:
        """Start to fold if there are many rows."""
        if rows > FEW and self._folding is None:
            self._written = 0
            self._folding = asyncio.get_running_loop().create_task(self._fold())

    async def _fold(self) -> None:
        try:
            await self._run("fold_counters", _BATCH)
        except EngineUnavailable:
            pass  # The next fold covers these rows.
        finally:
            self._folding = None

    async def fold_and_prune(self) -> None:
        """Fold the counters, and remove old replies."""
        await self._run("fold_counters", _BATCH)
        await self._run("prune_replies", _REPLY_RETENTION, _BATCH)

    async def close(self) -> None:
        if self._folding is not None:
            await asyncio.wait({self._folding})

    async def _run(self, name: str, *parameters: Any) -> None:
        async def run(connection: Connection) -> None:
            await connection.execute(self._statements[name], *parameters)

        await self._pool.run(run)
