"""The heartbeat: renews leases and stores the worker's heartbeats, controlled by its own thread.

It uses the worker's broker, on the worker's event loop, so that an idle worker needs no further connection.
While a handler blocks that loop, the thread uses its own event loop and broker, so that no lease is lost. The
replies to renewals report lost leases and cancel requests. If a handler blocks the worker's loop for over a
second, the heartbeat logs its stack, and releases the jobs that have not begun. C code that holds the
interpreter's lock stalls the heartbeat too.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from dayjob.broker import Broker
from dayjob.errors import Closed, DayjobError
from dayjob.model.durations import Duration
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.threads import joined
from dayjob.worker.executor import Run
from dayjob.worker.registration import Registration

_log = logging.getLogger("dayjob.worker")

INTERVAL = 0.25
SHORTEST_INTERVAL = 0.05
RESPONSE = 0.2
"""Seconds in which the worker's event loop responds. After that, and after an eighth of a lease, the thread
uses its own broker."""

OWN_KEPT = 30.0
"""Seconds after its last use until the thread's own broker is closed."""

BLOCKED_AFTER = 1.0
"""Seconds after which a blocked event loop is logged, and its jobs that have not begun are released."""

BLOCKED_LIMIT = 10.0
"""Seconds after which a worker whose event loop is blocked is unhealthy."""


_of_broker: WeakKeyDictionary[Broker, set[Heartbeat]] = WeakKeyDictionary()
"""The heartbeats of the workers that share a broker. One commit stores the beats of all of them."""


class Heartbeat:
    """Renews the leases of one worker's runs from ``start`` to ``stop``.

    ``broker`` belongs to the worker's event loop. ``make_broker`` creates the thread's own broker. ``runs``
    returns all claims of the worker, ``running`` the number of slots in use.
    """

    def __init__(
        self,
        broker: Broker,
        make_broker: Callable[[], Broker],
        runs: Callable[[], Collection[Run]],
        running: Callable[[], int],
        take_waiting: Callable[[], list[Run]],
        lease: Duration | None,
        registration: Registration,
        replaced: Callable[[str], None],
        released: Callable[[list[Run]], None],
    ) -> None:
        self._broker = broker
        self._make_broker = make_broker
        self._own: Broker | None = None
        self._own_used_at = 0.0
        self._runs = runs
        self._running = running
        self._take_waiting = take_waiting
        self._registration = registration
        self._replaced = replaced
        self._released = released
        self._taken: list[Run] = []
        """Runs that have not begun and are not released yet."""
        self._lease = lease
        self._worker_loop = asyncio.get_running_loop()
        self._worker_thread = threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="dayjob-heartbeat", daemon=True)
        self._beating = False
        self._probed_at: float | None = None
        self._logged = False

    def start(self) -> None:
        _of_broker.setdefault(self._broker, set()).add(self)
        self._thread.start()

    async def stop(self) -> None:
        _of_broker[self._broker].discard(self)
        self._loop.call_soon_threadsafe(self._stopped.set)
        await joined(self._thread)
        self._loop.close()

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())

    async def _run(self) -> None:
        failing = False
        try:
            while not await SYSTEM.wait(self._stopped, INTERVAL if failing else self._until_next()):
                if self._is_blocked():
                    self._take()
                now = SYSTEM.elapsed()
                due = [run for run in self._runs() if run.renew_at <= now and not run.lost]
                if due or self._taken or self._registration.beat_at <= now:
                    try:
                        if self._taken or not await self._on_worker_loop(due):
                            await self._store(await self._own_broker(), due)
                        failing = False
                    except Exception as error:  # The next beat retries after any error.
                        if not failing:
                            _log.warning("%d leases could not be renewed, retrying: %r", len(due), error)
                        failing = True
                if self._own is not None and SYSTEM.elapsed() - self._own_used_at > OWN_KEPT:
                    await self._close_own()
        finally:
            if self._own is not None and not failing:
                with suppress(DayjobError):
                    await self._release(self._own)
            await self._close_own()

    async def _own_broker(self) -> Broker:
        if self._own is None:
            self._own = await self._make_broker().open()
        self._own_used_at = SYSTEM.elapsed()
        return self._own

    async def _close_own(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            with suppress(DayjobError):
                await own.close()

    async def _store(self, broker: Broker, due: list[Run]) -> None:
        """Store everything that is due."""
        await self._release(broker)
        await self._renew(broker, due)
        if self._registration.beat_at <= SYSTEM.elapsed():
            if broker is self._broker:
                await asyncio.gather(*(each._beat_together() for each in _of_broker.get(broker, ())))
            else:
                await self._beat(broker)

    async def _beat(self, broker: Broker) -> None:
        await self._registration.beat(broker, self._running(), self._on_replaced)

    async def _beat_together(self) -> None:
        if not self._beating:  # Otherwise another worker's call includes this one.
            self._beating = True
            try:
                await self._beat(self._broker)
            finally:
                self._beating = False

    async def _on_worker_loop(self, due: list[Run]) -> bool:
        """``_store`` on the worker's event loop. Return False if it does not respond, or is at its end."""
        leases = [self._broker.lease_of(run.job.queue, self._lease) for run in due]
        limit = min([RESPONSE, *(lease / 8 for lease in leases)])
        if self.blocked_for() > limit:
            return False
        storing: Coroutine[Any, Any, None] = self._store(self._broker, due)
        try:
            stored = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(storing, self._worker_loop))
        except RuntimeError:  # The loop is closed.
            storing.close()
            return False
        while not stored.done():
            self._probe()
            await asyncio.wait({stored}, timeout=limit)
            if not stored.done() and self.blocked_for() > limit:
                stored.cancel()  # The repetition of a write that was under way is harmless.
                return False
        if stored.cancelled():  # The host of the loop has cancelled all tasks.
            return False
        try:
            stored.result()
        except Closed:
            return False
        return True

    def _until_next(self) -> float:
        renewals = (run.renew_at for run in self._runs() if not run.lost)
        soonest = min(renewals, default=self._registration.beat_at)
        return min(INTERVAL, max(soonest - SYSTEM.elapsed(), SHORTEST_INTERVAL))

    async def _renew(self, broker: Broker, due: list[Run]) -> None:
        if not due:
            return
        renewed = await broker.renew_many([run.job for run in due], self._lease)
        now = SYSTEM.elapsed()
        for run, renewal in zip(due, renewed, strict=True):
            if renewal.lease_us is None:
                self._call_worker(run.lose)
            else:
                run.job.lease_us = renewal.lease_us
                run.renew_at = now + broker.lease_of(run.job.queue, self._lease) / 2
                if renewal.cancel_requested:
                    self._call_worker(run.cancel_requested)

    def _on_replaced(self, old: str) -> None:
        self._call_worker(partial(self._replaced, old))

    def _call_worker(self, callback: Callable[[], None]) -> None:
        """Call back on the worker's event loop."""
        with suppress(RuntimeError):  # The worker's loop is closed, so the worker has stopped.
            self._worker_loop.call_soon_threadsafe(callback)

    # A blocked event loop.

    def blocked_for(self) -> float:
        """Return for how many seconds the worker's event loop has not responded. Callable from any thread."""
        probed_at = self._probed_at
        return 0.0 if probed_at is None else SYSTEM.elapsed() - probed_at

    def _probe(self) -> None:
        """Ask the worker's event loop for a response, unless one is missing."""
        if self._probed_at is None:
            self._probed_at = SYSTEM.elapsed()
            self._call_worker(self._loop_responded)

    def _is_blocked(self) -> bool:
        self._probe()
        if self.blocked_for() <= BLOCKED_AFTER:
            return False
        if not self._logged:
            self._logged = True
            frame = sys._current_frames().get(self._worker_thread)
            stack = "".join(traceback.format_stack(frame)) if frame else "(no stack)"
            _log.warning("the event loop has been blocked for over %g s by:\n%s", BLOCKED_AFTER, stack)
        return True

    def _loop_responded(self) -> None:
        self._probed_at = None
        self._logged = False

    def _take(self) -> None:
        """Take the runs that have not begun. The worker no longer begins them."""
        for run in self._take_waiting():
            run.lost = True
            self._taken.append(run)

    async def _release(self, broker: Broker) -> None:
        """Release the taken runs: other workers may run their jobs."""
        if self._taken:
            await broker.settle_many([Settlement(run.job, Transition.RELEASE) for run in self._taken])
            _log.warning(
                "%d jobs had not begun behind the blocked event loop and were released", len(self._taken)
            )
            self._call_worker(partial(self._released, self._taken))
            self._taken = []
