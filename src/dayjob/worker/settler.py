"""Storing outcomes: whatever has ended while one batch was on its way forms the next.

A settlement is never dropped: through an outage it is tried again until it is stored or refused. One
that can't be stored as it is, such as an ack with an impossible follow-up job, fails its own run only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dayjob.broker import Broker
from dayjob.engines.base import BATCH, Contended
from dayjob.errors import Closed, EngineFenced, EngineUnavailable
from dayjob.model.settlement import Settlement, SettleResult
from dayjob.runtime.clock import Clock
from dayjob.worker.outcome import describe
from dayjob.worker.run import Run

_log = logging.getLogger("dayjob.worker")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

Batch = list[tuple[Run, Settlement]]
Settled = Callable[[Batch, list[SettleResult]], None]


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
        self._held_up: set[asyncio.Task[None]] = set()

    def put(self, run: Run, settlement: Settlement) -> None:
        if settlement.enqueue and any(job.dedup_key is not None for job in settlement.enqueue):
            # It may have to wait for somebody's open transaction: no other is to wait with it.
            task = asyncio.get_running_loop().create_task(self._store_alone((run, settlement)))
            self._held_up.add(task)
            task.add_done_callback(self._held_up.discard)
            return
        self._waiting.append((run, settlement))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def flush(self) -> None:
        """Wait until all that was put is settled."""
        while self._runner is not None or self._held_up:
            await asyncio.wait({*self._held_up, *([self._runner] if self._runner is not None else [])})

    def abort(self) -> None:
        """Give up on what is not settled yet; the leases see to it."""
        for task in (*self._held_up, self._runner):
            if task is not None:
                task.cancel()

    async def _store_alone(self, one: tuple[Run, Settlement]) -> None:
        try:
            await self._store([one])
        except (EngineFenced, Closed) as error:
            self._shut_out(error)

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
            except Contended as error:
                return await self._store_later(batch, error)
            except EngineUnavailable as error:
                _log.warning("%d outcomes wait for the storage: %s", len(batch), error)
                await self._clock.wait(asyncio.Event(), pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            except (EngineFenced, Closed):
                raise
            except Exception as error:
                return await self._store_one_by_one(batch, error)
            else:
                self._settled(batch, results)
                return None

    async def _store_later(self, batch: Batch, error: Exception) -> None:
        """A follow-up job of the batch is held up by somebody's open transaction: its run waits, no other."""
        if len(batch) > 1:
            for one in batch:
                await self._store([one])
            return
        _log.info("the outcome of job %s waits: %s", batch[0][0].job.id, error)
        task = asyncio.get_running_loop().create_task(self._put_back(batch))
        self._held_up.add(task)
        task.add_done_callback(self._held_up.discard)

    async def _put_back(self, batch: Batch) -> None:
        await self._clock.wait(asyncio.Event(), _LONGEST_PAUSE)
        for run, settlement in batch:
            self.put(run, settlement)

    async def _store_one_by_one(self, batch: Batch, error: Exception) -> None:
        """One of the batch can't be stored: that one becomes a failure, and the others go their way."""
        if len(batch) > 1:
            for one in batch:
                await self._store([one])
            return
        run, settlement = batch[0]
        if isinstance(settlement.error, _Refused):
            _log.error("job %s can't be settled and is left to its lease", run.job.id, exc_info=error)
            self._settled(batch, [SettleResult(run.job.key, applied=False)])
        else:
            reason = _Refused(f"the outcome can't be stored: {describe(error)}")
            await self._store([(run, Settlement.nack(run.job, reason))])


class _Refused(Exception):
    """The storage refused what a run came to."""
