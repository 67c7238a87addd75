"""Keeping small what only grows: the rows of counters, and the answers of batches."""

from __future__ import annotations

import asyncio
from typing import Any

from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.statements import Statements
from dayjob.errors import EngineUnavailable
from dayjob.model.durations import SECOND

FEW = 2000
"""Rows of counters that are let stand."""

_AT_ONCE = 20_000
_NOTED_FOR = 600 * SECOND
"""How long the answer of a batch is kept."""


class Tidying:
    """Folds counters in the background, when this process has written many or has seen many."""

    def __init__(self, courier: Courier, statements: Statements) -> None:
        self._courier = courier
        self._statements = statements
        self._written = 0
        self._folding: asyncio.Task[None] | None = None

    def written(self) -> None:
        """A commit has added to the counters."""
        self._written += 1
        self.seen(self._written)

    def seen(self, rows: int) -> None:
        if rows > FEW and self._folding is None:
            self._written = 0
            self._folding = asyncio.get_running_loop().create_task(self._fold())

    async def _fold(self) -> None:
        try:
            await self._run("fold", _AT_ONCE)
        except EngineUnavailable:
            pass  # The next time will do.
        finally:
            self._folding = None

    async def tidy(self) -> None:
        """Fold the counters, and forget the answers of batches that nobody asks for any more."""
        await self._run("fold", _AT_ONCE)
        await self._run("prune", _NOTED_FOR, _AT_ONCE)

    async def close(self) -> None:
        if self._folding is not None:
            await asyncio.wait({self._folding})

    async def _run(self, name: str, *parameters: Any) -> None:
        async def run(connection: Connection) -> None:
            await connection.execute(self._statements[name], *parameters)

        await self._courier.carry(run)
