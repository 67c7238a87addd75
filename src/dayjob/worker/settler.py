"""Storing the outcomes of runs, in batches.

An outcome is never dropped: through an outage it is tried again until it is stored or refused. An outcome
that can't be stored, such as an ack with an invalid follow-up job, becomes a failure of its own run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dayjob.broker import Broker
from dayjob.broker.batcher import Batcher, settlements_weight
from dayjob.engines.base import Contended
from dayjob.errors import Closed, EngineFenced, EngineUnavailable
from dayjob.model.settlement import Settlement, SettleResult
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import Clock
from dayjob.worker.executor import Run, describe

_log = logging.getLogger("dayjob.worker")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

Batch = list[tuple[Run, Settlement]]
Settled = Callable[[Batch, Sequence[SettleResult]], None]


class Settler:
    """``settled`` gets each stored batch. ``shut_out`` is called when the engine is fenced or closed."""

    def __init__(
        self, broker: Broker, clock: Clock, settled: Settled, shut_out: Callable[[Exception], None]
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._settled = settled
        self._shut_out = shut_out
        self._batcher: Batcher[tuple[Run, Settlement], SettleResult] = Batcher(
            self._store, settled, self._failed, weigh=lambda batch: settlements_weight(_settlements(batch))
        )
        self._cancelled: Batch = []
        """Outcomes whose batch was cancelled with all tasks of the event loop."""
        self._aborted = False

    def put(self, run: Run, settlement: Settlement) -> None:
        if settlement.enqueue and any(job.dedup_key is not None for job in settlement.enqueue):
            self._batcher.put_alone((run, settlement))  # It may have to wait for another client's lock.
        else:
            self._batcher.put((run, settlement))

    async def flush(self) -> None:
        """Wait until all outcomes are stored or refused."""
        while True:
            for run, settlement in self._cancelled:
                self.put(run, settlement)
            self._cancelled.clear()
            await self._batcher.drain()
            if not self._cancelled:
                return

    def abort(self) -> None:
        """Stop without the replies to the batches under way."""
        self._aborted = True
        self._batcher.abort()

    async def _store(self, batch: Batch) -> list[SettleResult]:
        backoff: Backoff | None = None
        while True:
            try:
                return await self._broker.settle_many(_settlements(batch))
            except Contended as error:
                if len(batch) == 1:
                    _log.info("the outcome of job %s is not stored yet: %s", batch[0][0].job.id, error)
                raise
            except EngineUnavailable as error:
                _log.warning("%d outcomes wait for the storage: %s", len(batch), error)
                backoff = backoff or Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                await backoff.wait(self._clock)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        if isinstance(error, EngineFenced | Closed):
            self._shut_out(error)
        elif isinstance(error, Exception):
            for run, settlement in batch:
                self._refused(run, settlement, error)
        elif not self._aborted:
            self._cancelled += batch

    def _refused(self, run: Run, settlement: Settlement, error: Exception) -> None:
        """Store a failure instead. If that is refused too, let the lease of the job expire."""
        if isinstance(settlement.error, _Refused):
            _log.error(
                "job %s could not be settled: its claim ends with its lease", run.job.id, exc_info=error
            )
            self._settled([(run, settlement)], [SettleResult(run.job.key, applied=False)])
        else:
            reason = _Refused(f"the outcome can't be stored: {describe(error)}")
            self.put(run, Settlement.nack(run.job, reason))


def _settlements(batch: Sequence[tuple[Run, Settlement]]) -> list[Settlement]:
    return [settlement for _, settlement in batch]


class _Refused(Exception):
    """The broker refused the outcome of a run."""
