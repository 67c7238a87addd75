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
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dayjob.broker import Broker
from dayjob.broker.worker_registry import Beat
from dayjob.errors import Closed, DayjobError
from dayjob.model.durations import Duration
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.threads import call_on, joined
from dayjob.worker.executor import Run
from dayjob.worker.registration import Registration
from dayjob.worker.shared_beats import group_of

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
        self._opening = asyncio.Lock()
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
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._run()), name="dayjob-heartbeat", daemon=True
        )
        self._group = group_of(broker)
        self._sharing: asyncio.Task[None] | None = None
        self._unconfirmed = False
        """Whether a shared heartbeat was not confirmed, so that the worker has to store its own."""
        self._probed_at: float | None = None
        self._logged = False

    def start(self) -> None:
        self._group.join()
        self._thread.start()

    async def stop(self) -> None:
        self._group.leave()
        self._loop.call_soon_threadsafe(self._stopped.set)
        await joined(self._thread)
        self._loop.close()

    async def _run(self) -> None:
        failing = False
        try:
            while not await SYSTEM.wait(self._stopped, INTERVAL if failing else self._until_next()):
                if self._is_blocked():
                    self._take()
                now = SYSTEM.elapsed()
                due = [run for run in self._runs() if run.renew_at <= now and not run.lost]
                beats = self._beats_itself(now)
                if due or self._taken or beats:
                    try:
                        if self._taken or not await self._store_on_worker_loop(due, beats):
                            await self._store(await self._own_broker(), due, beats)
                        failing = False
                    except Exception as error:  # The next beat retries after any error.
                        if not failing:
                            _log.warning("%d leases could not be renewed, retrying: %r", len(due), error)
                        failing = True
                if self._own is not None and SYSTEM.elapsed() - self._own_used_at > OWN_KEPT:
                    await self._close_own()
        finally:
            if self._sharing is not None:
                self._sharing.cancel()
                await asyncio.wait({self._sharing})
            if self._own is not None and not failing:
                with suppress(DayjobError):
                    await self._release(self._own)
            await self._close_own()

    async def _own_broker(self) -> Broker:
        async with self._opening:
            if self._own is None:
                self._own = await self._make_broker().open()
            self._own_used_at = SYSTEM.elapsed()
            return self._own

    async def _close_own(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            with suppress(DayjobError):
                await own.close()

    async def _store(self, broker: Broker, due: list[Run], beats: bool) -> bool:
        await self._release(broker)
        await self._renew(broker, due)
        if beats:
            replaced = partial(call_on, self._worker_loop, self._replaced)
            await self._registration.beat(broker, self._running(), replaced)
            self._unconfirmed = False
        return True

    # Heartbeats that are shared with other workers.

    def _beats_itself(self, now: float) -> bool:
        """Return whether this worker has to store its heartbeat. Start to share one that is due."""
        if self._registration.beat_at > now or self._sharing is not None:
            return False
        if self._unconfirmed or not (self._group.is_shared and self._registration.may_share):
            return True
        self._sharing = self._loop.create_task(self._share())
        return False

    async def _share(self) -> None:
        """Share the heartbeat that is due. Renewals continue meanwhile."""
        try:
            self._unconfirmed = not await self._registration.share(
                self._group, self._broker, self._running(), self._store_beats
            )
        except Exception as error:
            self._unconfirmed = True
            _log.debug("a shared heartbeat was not stored: %r", error)
        finally:
            self._sharing = None

    async def _store_beats(self, beats: Sequence[Beat]) -> bool:
        stored = await self._on_worker_loop(self._broker.store_beats(beats), RESPONSE)
        return await (await self._own_broker()).store_beats(beats) if stored is None else stored

    # The worker's event loop.

    async def _store_on_worker_loop(self, due: list[Run], beats: bool) -> bool | None:
        """``_store`` on the worker's event loop. Return None if it does not respond, or is at its end."""
        leases = [self._broker.lease_of(run.job.queue, self._lease) for run in due]
        limit = min([RESPONSE, *(lease / 8 for lease in leases)])
        return await self._on_worker_loop(self._store(self._broker, due, beats), limit)

    async def _on_worker_loop(self, storing: Coroutine[Any, Any, bool], limit: float) -> bool | None:
        """Run it there. Return None if the loop does not respond within the limit, or is at its end."""
        if self.blocked_for() > limit:
            storing.close()
            return None
        try:
            stored = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(storing, self._worker_loop))
        except RuntimeError:  # The loop is closed.
            storing.close()
            return None
        try:
            while not stored.done():
                self._probe()
                await asyncio.wait({stored}, timeout=limit)
                if not stored.done() and self.blocked_for() > limit:
                    return None
        finally:
            stored.cancel()  # The repetition of a write that was under way is harmless.
        if stored.cancelled():  # The host of the loop has cancelled all tasks.
            return None
        try:
            return stored.result()
        except Closed:
            return None

    def _until_next(self) -> float:
        renewals = (run.renew_at for run in self._runs() if not run.lost)
        soonest = min(renewals, default=float("inf"))
        if self._sharing is None:
            soonest = min(soonest, self._registration.beat_at)
        return min(INTERVAL, max(soonest - SYSTEM.elapsed(), SHORTEST_INTERVAL))

    async def _renew(self, broker: Broker, due: list[Run]) -> None:
        if not due:
            return
        renewed = await broker.renew_many([run.job for run in due], self._lease)
        now = SYSTEM.elapsed()
        for run, renewal in zip(due, renewed, strict=True):
            if renewal.lease_us is None:
                call_on(self._worker_loop, run.lose)
            else:
                run.job.lease_us = renewal.lease_us
                run.renew_at = now + broker.lease_of(run.job.queue, self._lease) / 2
                if renewal.cancel_requested:
                    call_on(self._worker_loop, run.cancel_requested)

    # A blocked event loop.

    def blocked_for(self) -> float:
        """Return for how many seconds the worker's event loop has not responded. Callable from any thread."""
        probed_at = self._probed_at
        return 0.0 if probed_at is None else SYSTEM.elapsed() - probed_at

    def _probe(self) -> None:
        """Request a response from the worker's event loop, unless one is still missing."""
        if self._probed_at is None:
            self._probed_at = SYSTEM.elapsed()
            call_on(self._worker_loop, self._loop_responded)

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
            call_on(self._worker_loop, self._released, self._taken)
            self._taken = []
