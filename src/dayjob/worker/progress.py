"""Progress reports: the latest of each run, stored in one batch every 250 ms at most."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque

from dayjob.broker import Broker
from dayjob.context import Context
from dayjob.engines.base import Progress
from dayjob.errors import DayjobError
from dayjob.model.job import Job
from dayjob.model.names import clean_error
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.threads import call_on

_log = logging.getLogger("dayjob.worker")

INTERVAL = 0.25


class ProgressReports:
    """Receives reports from coroutines and threads, and stores them in batches."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._latest: dict[tuple[bytes, bytes], Progress] = {}
        """By claim: a lost job may run here again while its earlier run has not ended."""
        self._being_stored: dict[tuple[bytes, bytes], Progress] = {}
        self._from_threads: deque[Progress] = deque()
        """Reports that are not in ``_latest`` yet."""
        self._stored_at = -INTERVAL
        self.pending = False
        """Whether there are reports that may not be stored yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._storing: asyncio.Task[None] | None = None

    def report(self, context: Context, fraction: float, message: str) -> None:
        """Add the progress of a run. Callable from any thread."""
        job = context.job
        report = Progress(job.key, job.claim, fraction, clean_error(message))
        if threading.get_ident() == self._thread:
            self._add(report)
            return
        self._from_threads.append(report)
        self.pending = True
        call_on(self._loop, self._add_from_threads)

    def _add_from_threads(self) -> None:
        while self._from_threads:
            self._add(self._from_threads.popleft())

    def _add(self, report: Progress) -> None:
        self._latest[report.key, report.claim] = report
        self.pending = True
        if self._timer is None and self._storing is None:
            delay = max(self._stored_at + INTERVAL - SYSTEM.elapsed(), 0.0)
            self._timer = self._loop.call_later(delay, self._flush)

    def take(self, job: Job) -> tuple[float, str] | None:
        """Return the last report of a run that ended, if it may not be stored yet.

        It is stored with the outcome. The write of a report under way may come after the settlement, and the
        engine ignores it then.
        """
        self._add_from_threads()  # The end of a run may be reported before the callback for its progress.
        claim = job.key, job.claim
        report = self._latest.pop(claim, None) or self._being_stored.get(claim)
        return None if report is None else (report.fraction, report.message)

    def _flush(self) -> None:
        self._timer = None
        self._storing = self._loop.create_task(self._store())

    async def _store(self) -> None:
        reports, self._latest = self._latest, {}
        self._being_stored = reports
        self._stored_at = SYSTEM.elapsed()
        try:
            await self._broker.record_progress(list(reports.values()))
        except DayjobError as error:
            _log.warning("progress of %d jobs could not be stored: %s", len(reports), error)
        finally:
            self._being_stored = {}
            self._storing = None
            self.pending = False  # First: a thread may add a report at any time.
            if self._latest or self._from_threads:
                self.pending = True
        for report in list(self._latest.values())[:1]:
            self._add(report)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._storing is not None:
            await asyncio.wait({self._storing})
