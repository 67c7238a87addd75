"""Storing outcomes: whatever has ended while one batch was on its way forms the next.

A settlement is never dropped: through an outage it is tried again until it is stored or refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dayjob.broker import Broker
from dayjob.clock import Clock
from dayjob.engines.base import BATCH
from dayjob.errors import EngineUnavailable
from dayjob.settlement import Settlement, SettleResult
from dayjob.worker.run import Run

_log = logging.getLogger("dayjob.worker")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

Settled = Callable[[Run, Settlement, SettleResult], None]


class Settler:
    """Settles runs in batches; tells ``settled`` of each."""

    def __init__(self, broker: Broker, clock: Clock, settled: Settled) -> None:
        self._broker = broker
        self._clock = clock
        self._settled = settled
        self._waiting: list[tuple[Run, Settlement]] = []
        self._runner: asyncio.Task[None] | None = None

    def put(self, run: Run, settlement: Settlement) -> None:
        self._waiting.append((run, settlement))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def flush(self) -> None:
        """Wait until all that was put is settled."""
        while self._runner is not None:
            await asyncio.wait({self._runner})

    def abort(self) -> None:
        """Give up on what is not settled yet; the leases see to it."""
        if self._runner is not None:
            self._runner.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                results = await self._store([settlement for _, settlement in batch])
                for (run, settlement), result in zip(batch, results, strict=True):
                    self._settled(run, settlement, result)
        finally:
            self._runner = None

    async def _store(self, settlements: list[Settlement]) -> list[SettleResult]:
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._broker.settle_many(settlements)
            except EngineUnavailable as error:
                _log.warning("%d outcomes wait for the storage: %s", len(settlements), error)
                await self._clock.wait(asyncio.Event(), pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
