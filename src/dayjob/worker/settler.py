"""Storing outcomes: whatever has ended while one batch was on its way forms the next.

A settlement is never dropped: through an outage it is tried again until it is stored or refused. One
that can't be stored as it is, such as an ack with an impossible follow-up job, fails its own run only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dayjob.broker import Broker
from dayjob.clock import Clock
from dayjob.engines.base import BATCH
from dayjob.errors import Closed, EngineFenced, EngineUnavailable
from dayjob.settlement import Settlement, SettleResult
from dayjob.worker.outcome import describe
from dayjob.worker.run import Run

_log = logging.getLogger("dayjob.worker")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

Settled = Callable[[Run, Settlement, SettleResult], None]
Batch = list[tuple[Run, Settlement]]


class Settler:
    """Settles runs in batches; tells ``settled`` of each, and ``shut_out`` if the storage is ours no more."""

    def __init__(
        self, broker: Broker, clock: Clock, settled: Settled, shut_out: Callable[[Exception], None]
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._settled = settled
        self._shut_out = shut_out
        self._waiting: Batch = []
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
                await self._store(batch)
        except (EngineFenced, Closed) as error:
            self._shut_out(error)
        finally:
            self._runner = None

    async def _store(self, batch: Batch) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                results = await self._broker.settle_many([settlement for _, settlement in batch])
            except EngineUnavailable as error:
                _log.warning("%d outcomes wait for the storage: %s", len(batch), error)
                await self._clock.wait(asyncio.Event(), pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            except (EngineFenced, Closed):
                raise
            except Exception as error:
                return await self._store_one_by_one(batch, error)
            else:
                for (run, settlement), result in zip(batch, results, strict=True):
                    self._settled(run, settlement, result)
                return None

    async def _store_one_by_one(self, batch: Batch, error: Exception) -> None:
        """One of the batch can't be stored: that one becomes a failure, and the others go their way."""
        if len(batch) > 1:
            for one in batch:
                await self._store([one])
            return
        run, settlement = batch[0]
        if isinstance(settlement.error, _Refused):
            _log.error("job %s can't be settled and is left to its lease", run.job.id, exc_info=error)
            self._settled(run, settlement, SettleResult(run.job.key, applied=False))
        else:
            reason = _Refused(f"the outcome can't be stored: {describe(error)}")
            await self._store([(run, Settlement.nack(run.job, reason))])


class _Refused(Exception):
    """The storage refused what a run came to."""
