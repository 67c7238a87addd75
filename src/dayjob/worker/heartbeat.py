"""The heartbeat: renews leases and shows that the worker lives, from a thread of its own.

So a handler that blocks the loop costs neither. It has a broker on an event loop in that thread, opened when
it is first needed. It learns of lost leases and of cancels from the renewals, and it logs the stack of
whatever blocks the worker's loop for over a second. Code that holds the interpreter's lock in C can still
stall it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from dayjob.broker import Broker
from dayjob.errors import DayjobError
from dayjob.model.durations import Duration
from dayjob.runtime.clock import SYSTEM
from dayjob.worker.registration import Registration
from dayjob.worker.run import Run

_log = logging.getLogger("dayjob.worker")

INTERVAL = 0.25
SHORTEST_INTERVAL = 0.05
BLOCKED_AFTER = 1.0


class Heartbeat:
    """Watches over the runs of one worker while it is started."""

    def __init__(
        self,
        make_broker: Callable[[], Broker],
        runs: Callable[[], Collection[Run]],
        lease: Duration | None,
        registration: Registration,
        replaced: Callable[[str], None],
    ) -> None:
        self._make_broker = make_broker
        self._runs = runs
        self._registration = registration
        self._replaced = replaced
        self._lease = lease
        self._worker_loop = asyncio.get_running_loop()
        self._worker_thread = threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="dayjob-heartbeat", daemon=True)
        self._asked_at: float | None = None
        self._reported = False

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        with ThreadPoolExecutor(1) as waiter:  # Stuck handlers may have filled the loop's own executor.
            await asyncio.get_running_loop().run_in_executor(waiter, self._thread.join)
        self._loop.close()

    def _serve(self) -> None:
        self._loop.run_until_complete(self._beat())

    async def _beat(self) -> None:
        broker: Broker | None = None
        failing = False
        try:
            while not await SYSTEM.wait(self._stopped, INTERVAL if failing else self._until_next()):
                self._check_loop()
                now = SYSTEM.elapsed()
                due = [run for run in self._runs() if run.renew_at <= now and not run.lost]
                if due or self._registration.beat_at <= now:
                    try:
                        if broker is None:
                            broker = await self._make_broker().open()
                        await self._renew(broker, due)
                        if self._registration.beat_at <= now:
                            await self._registration.beat(broker, len(self._runs()), self._tell_replaced)
                        failing = False
                    except Exception as error:  # Whatever it is, the next beat tries again.
                        if not failing:
                            _log.warning("%d leases could not be renewed yet: %r", len(due), error)
                        failing = True
        finally:
            if broker is not None:
                with suppress(DayjobError):
                    await broker.close()

    def _until_next(self) -> float:
        renewals = (run.renew_at for run in self._runs() if not run.lost)
        soonest = min(renewals, default=self._registration.beat_at)
        return min(INTERVAL, max(soonest - SYSTEM.elapsed(), SHORTEST_INTERVAL))

    async def _renew(self, broker: Broker, due: list[Run]) -> None:
        if not due:
            return
        answers = await broker.renew_many([run.job for run in due], self._lease)
        now = SYSTEM.elapsed()
        for run, answer in zip(due, answers, strict=True):
            if answer.lease_us is None:
                self._tell(run.lose)
            else:
                run.job.lease_us = answer.lease_us
                run.renew_at = now + broker.lease_of(run.job.queue, self._lease) / 2
                if answer.cancel_requested:
                    self._tell(run.cancel_requested)

    def _tell_replaced(self, old: str) -> None:
        self._tell(partial(self._replaced, old))

    def _tell(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The worker's loop is closed: nobody is left to be told.
            self._worker_loop.call_soon_threadsafe(callback)

    # Is the worker's loop alive?

    def _check_loop(self) -> None:
        if self._asked_at is None:
            self._asked_at = SYSTEM.elapsed()
            self._tell(self._answered)
        elif SYSTEM.elapsed() - self._asked_at > BLOCKED_AFTER and not self._reported:
            self._reported = True
            frame = sys._current_frames().get(self._worker_thread)
            stack = "".join(traceback.format_stack(frame)) if frame else "(no stack)"
            _log.warning("the event loop has been blocked for over %g s, by:\n%s", BLOCKED_AFTER, stack)

    def _answered(self) -> None:
        self._asked_at = None
        self._reported = False
