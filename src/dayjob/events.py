"""Events of jobs and workers, delivered to observers after the change was stored.

Each observer has its own queue and consumer, so one that is slow, blocks or raises delays neither the jobs
nor the other observers. Without an observer, no event is built or queued.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from threading import Lock, Thread

from msgspec import Struct

from dayjob.errors import ConfigError
from dayjob.model.job import FINISHED, Job, JobState
from dayjob.model.lifecycle import Transition
from dayjob.runtime.threads import call_on

_log = logging.getLogger("dayjob.events")

NAMES = (
    "job.enqueued", "job.started", "job.succeeded", "job.failed", "job.retrying", "job.dead",
    "job.cancelled", "job.snoozed", "job.released", "job.requeued", "job.lost", "worker.started",
    "worker.stopped",
)  # fmt: skip

MAX_QUEUED = 10_000
"""The number of events queued for a slow observer. Above it, the oldest are dropped, with a warning."""


OUTCOMES = {
    JobState.DONE: ("job.succeeded",),
    JobState.CANCELLED: ("job.cancelled",),
    JobState.DEAD: ("job.failed", "job.dead"),
    JobState.SCHEDULED: ("job.failed", "job.retrying"),
    JobState.PENDING: ("job.failed", "job.retrying"),
}
"""The events of a claim that ended, and of a waiting job that ended, by the new state."""

PUT_BACK = {Transition.RELEASE: ("job.released",), Transition.SNOOZE: ("job.snoozed",)}
"""The events of a claim that ended without a failure, and whose job waits again."""


def outcome_events(transition: Transition, state: JobState) -> tuple[str, ...]:
    """Return the events of a settlement, by its transition and the new state of its job."""
    return OUTCOMES[state] if state in FINISHED else PUT_BACK.get(transition, OUTCOMES[state])


class Event(Struct, frozen=True):
    """The argument of an observer. ``id`` is the job's id or the worker's name.

    ``job`` is the record of the claim, for the events of a run; else None. ``seconds`` is the duration of a
    run that ended. ``old_state`` is None for a new job, and ``new_state`` for a lost claim, as it is unknown.
    """

    name: str
    id: str
    queue: str = ""
    task: str = ""
    job: Job | None = None
    old_state: JobState | None = None
    new_state: JobState | None = None
    error: str | None = None
    seconds: float | None = None


Observer = Callable[[Event], Awaitable[None] | None]


class Events:
    """The observers of one app."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        """The events that have observers. Check it before you build one."""
        self._deliveries: list[Delivery] = []

    def add(self, patterns: str | Sequence[str], observer: Observer) -> None:
        """Deliver the events that match a pattern to the observer, in their order."""
        matched: set[str] = set()
        for pattern in (patterns,) if isinstance(patterns, str) else patterns:
            names = {name for name in NAMES if fnmatchcase(name, pattern)}
            if not names:
                raise ConfigError(f"no event matches {pattern!r}: the events are {', '.join(NAMES)}")
            matched |= names
        self.wanted |= matched
        self._deliveries.append(Delivery(observer, matched))

    def observed_by(self, kind: type) -> bool:
        return any(isinstance(delivery.observer, kind) for delivery in self._deliveries)

    def emit(self, event: Event) -> None:
        for delivery in self._deliveries:
            if event.name in delivery.names:
                delivery.put(event)

    async def flush(self, timeout: float) -> None:
        """Wait until the observers have processed their events, up to the timeout."""
        busy = [asyncio.ensure_future(delivery.idle()) for delivery in self._deliveries]
        if busy:
            _, late = await asyncio.wait(busy, timeout=timeout)
            for task in late:
                task.cancel()


class Delivery:
    """One observer, its queue, and the thread or task that consumes it while it is not empty.

    Events come from several event loops: the worker's, and the bridge's for synchronous code.
    """

    def __init__(self, observer: Observer, names: set[str]) -> None:
        self.names = names
        self.observer = observer
        self._is_async = inspect.iscoroutinefunction(observer)
        self._lock = Lock()
        self._events: deque[Event] = deque()
        self._too_slow = False
        self._running = False
        self._task: asyncio.Task[None] | None = None
        self._idle: list[Callable[[], object]] = []

    def put(self, event: Event) -> None:
        """Queue an event. Called on an event loop."""
        with self._lock:
            self._events.append(event)
            too_slow = len(self._events) > MAX_QUEUED
            if too_slow:
                self._events.popleft()
            warn, self._too_slow = too_slow and not self._too_slow, self._too_slow or too_slow
            start, self._running = not self._running, True
        if warn:
            _log.warning("the observer %r is too slow: its oldest events are dropped", self.observer)
        if start and self._is_async:
            self._task = asyncio.get_running_loop().create_task(self._consume_on_loop())
        elif start:
            Thread(target=self._consume_in_thread, name="dayjob-observer", daemon=True).start()

    async def _consume_on_loop(self) -> None:
        while (event := self._next()) is not None:
            try:
                await self.observer(event)  # type: ignore[misc]
            except BaseException:
                self._failed(event)
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # The loop ends. The next event starts a new task.
                    self._running = False
                    raise

    def _consume_in_thread(self) -> None:
        while (event := self._next()) is not None:
            try:
                self.observer(event)
            except BaseException:
                self._failed(event)

    def _next(self) -> Event | None:
        """Return the next event, or None if the queue is empty. Then the consumer ends."""
        with self._lock:
            if self._events:
                return self._events.popleft()
            self._running = self._too_slow = False
            idle, self._idle = self._idle, []
        for wake in idle:
            wake()
        return None

    def _failed(self, event: Event) -> None:
        _log.exception("the observer %r failed on %s of %s", self.observer, event.name, event.id)

    async def idle(self) -> None:
        idle = asyncio.Event()
        with self._lock:
            if not self._running:
                return
            self._idle.append(partial(call_on, asyncio.get_running_loop(), idle.set))
        await idle.wait()
