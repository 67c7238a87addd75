"""Events: what happened to jobs and workers, told to observers after it was stored.

Each observer has a queue and a consumer of its own, so one that is slow, blocks or raises holds up
nobody: neither the jobs nor the other observers. With no observer, nothing is built or queued.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from threading import Thread
from typing import Any

from msgspec import Struct

from dayjob.errors import ConfigError
from dayjob.job import Job, JobState

_log = logging.getLogger("dayjob.events")

NAMES = (
    "job.enqueued", "job.started", "job.succeeded", "job.failed", "job.retrying", "job.dead",
    "job.cancelled", "job.lost", "worker.started", "worker.stopped",
)  # fmt: skip

KEPT = 10_000
"""How many events wait for a slow observer; above, the oldest are dropped, and that is logged."""


class Event(Struct, frozen=True):
    """What an observer gets. ``id`` is the job's, or the worker's name."""

    name: str
    id: str
    queue: str = ""
    task: str = ""
    job: Job | None = None
    old_state: JobState | None = None
    new_state: JobState | None = None
    error: str | None = None


Observer = Callable[[Event], Awaitable[None] | None]


class Events:
    """The observers of one app."""

    def __init__(self) -> None:
        self._observers: list[tuple[str, Observer]] = []
        self._wanted: set[str] = set()
        self._deliveries: list[Delivery] = []

    def add(self, pattern: str, observer: Observer) -> None:
        matched = {name for name in NAMES if fnmatchcase(name, pattern)}
        if not matched:
            raise ConfigError(f"no event matches {pattern!r}: the events are {', '.join(NAMES)}")
        self._observers.append((pattern, observer))
        self._wanted |= matched
        self._deliveries.append(Delivery(observer, matched))

    def wants(self, name: str) -> bool:
        """Whether anybody observes this event; ask before you build one."""
        return name in self._wanted

    def emit(self, event: Event) -> None:
        for delivery in self._deliveries:
            if event.name in delivery.names:
                delivery.put(event)

    async def flush(self, timeout: float) -> None:
        """Give the observers some seconds to catch up."""
        busy = [asyncio.ensure_future(delivery.idle()) for delivery in self._deliveries]
        if busy:
            _, late = await asyncio.wait(busy, timeout=timeout)
            for task in late:
                task.cancel()


class Delivery:
    """One observer, its queue, and the thread or task that empties it while there is something in it."""

    def __init__(self, observer: Observer, names: set[str]) -> None:
        self.names = names
        self._observer = observer
        self._is_async = inspect.iscoroutinefunction(observer)
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._running = False
        self._idle: list[asyncio.Future[None]] = []

    def put(self, event: Event) -> None:
        """Queue an event; called on an event loop."""
        if len(self._events) == KEPT:
            _log.warning("the observer %r is too slow: its oldest events are dropped", self._observer)
        self._events.append(event)
        if not self._running:
            self._running = True
            loop = asyncio.get_running_loop()
            if self._is_async:
                task = loop.create_task(self._consume_here())
                task.add_done_callback(lambda _: self._rest())
            else:
                Thread(target=self._consume_in_thread, args=(loop,), daemon=True).start()

    async def _consume_here(self) -> None:
        while self._events:
            event = self._events.popleft()
            try:
                await self._observer(event)  # type: ignore[misc]
            except Exception:
                self._failed(event)

    def _consume_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._events:
            event = self._events.popleft()
            try:
                self._observer(event)
            except Exception:
                self._failed(event)
        try:
            loop.call_soon_threadsafe(self._rest)
        except RuntimeError:
            self._running = False

    def _failed(self, event: Event) -> None:
        _log.exception("the observer %r failed on %s of %s", self._observer, event.name, event.id)

    def _rest(self) -> None:
        self._running = False
        if self._events:
            self.put(self._events.pop())
            return
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def idle(self) -> None:
        if self._running:
            waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
