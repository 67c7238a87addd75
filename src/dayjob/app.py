"""The app: tasks, and the storage that their jobs go to.

An app may be used from several event loops and from plain threads in one process: each loop has a
broker of its own on the same storage, and synchronous code goes over a bridge. It opens on first use.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Concatenate, Protocol, Self, TypeVar, overload

from msgspec.structs import replace

from dayjob.broker import Broker
from dayjob.context import Context
from dayjob.engines.registry import parse, without_password
from dayjob.errors import ConfigError, InvalidState
from dayjob.events import Event, Events, Observer
from dayjob.instrumentation import Meter, Tracing
from dayjob.model.config import BrokerConfig, QueueConfig, Retention
from dayjob.model.durations import Duration
from dayjob.model.job import Enqueued, Job, NewJob
from dayjob.model.names import KEY_BYTES, check_name
from dayjob.model.recurring import Missed, Recurring
from dayjob.model.retry import DelayFunction, Retry
from dayjob.runtime.bridge import Bridge
from dayjob.runtime.clock import Clock
from dayjob.runtime.ids import new_key
from dayjob.task import (
    C,
    Dedup,
    OnCancel,
    P,
    Pool,
    R,
    Task,
    TaskConfig,
    check_config,
    check_function,
    default_name,
    make_retry,
)  # fmt: skip

Answer = TypeVar("Answer")
Middleware = Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]
TenantScope = Callable[[str], AbstractAsyncContextManager[Any]]
Runner = Callable[[NewJob], Awaitable[Enqueued]]
Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]

KEPT_DONE = timedelta(hours=1)
"""How long an app keeps done jobs where its configuration doesn't say, so that results can be read."""

_apps: weakref.WeakSet[App] = weakref.WeakSet()


class Anything:
    """For type checkers: a function that takes this first takes anything there, a ``Context`` included.

    They could not tell whether that parameter belongs to the call, so such a task's calls go unchecked.
    """


class App:
    """A set of tasks on one storage URL."""

    def __init__(
        self,
        url: str,
        *,
        config: BrokerConfig | None = None,
        middleware: Sequence[Middleware] = (),
        tenant_scope: TenantScope | None = None,
        lifespan: Lifespan | None = None,
        name: str = "dayjob",
    ) -> None:
        check_name(name, "app name", KEY_BYTES)
        location = parse(url)
        private = location.parts.scheme == "memory" and not location.parts.netloc
        self.url = f"memory://app-{new_key().hex()}" if private else url
        self.name = name
        self.config = _with_results(config or BrokerConfig())
        self.middleware = tuple(middleware)
        self.tenant_scope = tenant_scope
        self.lifespan = lifespan
        self.tasks: dict[str, Task[Any, Any, Any]] = {}
        self.handlers: dict[str, Task[Any, Any, Any]] = {}
        self.events = Events()
        self.runner: Runner | None = None
        """Takes jobs in place of the storage; set by ``dayjob.testing.eager``."""
        self.meter: Meter | None = None
        """Counts and times this process's jobs; set by ``dayjob.metrics.measure``."""
        self.tracing: Tracing | None = None
        """Follows jobs; set by ``dayjob.tracing.trace``."""
        self.clock: Clock | None = None
        """The clock that brokers and workers go by; set by tests before first use."""
        self._bridge = Bridge(f"{name}-bridge")
        self._pid = os.getpid()
        self._brokers: dict[asyncio.AbstractEventLoop, Broker] = {}
        Broker(self.url, config=self.config)
        _apps.add(self)

    # Tasks.

    @overload
    def task(
        self, function: Callable[Concatenate[Anything, P], Coroutine[Any, Any, R]], /
    ) -> Task[..., R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[Anything, P], R], /) -> Task[..., R, R]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int | None = None,
        retry: Retry | DelayFunction | None = None,
        timeout: Duration | None = None,
        pool: Pool | None = None,
        cancel: OnCancel = "signal",
        retention: Retention | None = None,
        dedup: Dedup | None = None,
        max_attempts: int | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
    ) -> TaskDecorator: ...

    def task(self, function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:  # type: ignore[misc]
        """Register a function as a task: ``@app.task`` or ``@app.task(queue="email", ...)``.

        ``timeout`` is in seconds; ``pool="process"`` runs it in a child process; ``cancel="interrupt"``
        cancels the coroutine or kills the process when the job is cancelled; ``dedup=True`` enqueues a
        call with equal arguments only once while one waits (``"settled"``: or runs; a function of the
        arguments gives the key). ``cron="*/5 * * * *"`` or ``every=30`` (seconds) makes it a recurring job
        that workers enqueue at its times.
        """
        if function is None:
            return lambda found: self._register(found, name, options, raw=False)
        return self._register(function, name, options, raw=False)

    def handler(
        self, *, queue: str, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., C]], Task[[bytes], Any, C]]:
        """Register a function that gets the jobs of a queue as they are: a ``Job``, its payload bytes."""
        return lambda function: self._register(function, name, {"queue": queue, **options}, raw=True)

    def _register(
        self, function: Callable[..., Any], name: str | None, options: dict[str, Any], raw: bool
    ) -> Task[Any, Any, Any]:
        check_function(function)
        name = default_name(function) if name is None else name
        check_name(name, "task name", KEY_BYTES)
        unknown = options.keys() - set(TaskConfig.__struct_fields__)
        if unknown:
            known = ", ".join(TaskConfig.__struct_fields__)
            raise ConfigError(
                f"task {name!r}: unknown option {sorted(unknown)[0]!r}: there are name, {known}"
            )
        options["retry"] = make_retry(options.get("retry"), name)
        config = check_config(TaskConfig(**options), name)
        if config.retention is not None:
            config = replace(config, retention=_keeping(config.retention))
        task: Task[Any, Any, Any] = Task(self, function, name, config, raw)
        if task.recurring is not None and task.arguments is not None and task.arguments.required:
            missing = ", ".join(sorted(task.arguments.required))
            raise ConfigError(
                f"task {name!r} recurs and is called without arguments: give {missing} a default, "
                "or schedule it with args"
            )
        known_as, registry = (config.queue, self.handlers) if raw else (name, self.tasks)
        other = registry.get(known_as)
        if other is not None and not _same_function(other.function, function):
            kind = "handler for queue" if raw else "task named"
            raise ConfigError(
                f"there is a {kind} {known_as!r} already, {_shown(other.function)}, "
                f"and this is {_shown(function)}: give one of them another name"
            )
        registry[known_as] = task
        return task

    def find(self, job: Job) -> Task[Any, Any, Any] | None:
        """The task that a job is for."""
        return self.tasks.get(job.task) if job.task else self.handlers.get(job.queue)

    def recurring(self) -> list[Recurring]:
        """What ``cron=`` and ``every=`` of this app's tasks declare."""
        tasks = [*self.tasks.values(), *self.handlers.values()]
        return [recurring for task in tasks if (recurring := task.recurring) is not None]

    def on(self, pattern: str) -> Callable[[Observer], Observer]:
        """Register an observer of events: ``@app.on("job.dead")``, ``@app.on("job.*")``."""

        def register(observer: Observer) -> Observer:
            self.events.add(pattern, observer)
            return observer

        return register

    # Open and closed.

    @property
    def broker(self) -> Broker:
        """The broker underneath: the one of the running event loop, or of the bridge for plain threads."""
        loop = _running_loop()
        return self._broker_of(self._bridge.start() if loop is None else loop)

    @property
    def broker_config(self) -> BrokerConfig:
        """What this app's brokers are configured with: they run no duties of their own accord."""
        return replace(self.config, duties=False)

    async def opened(self) -> Broker:
        """The broker of this event loop, opened on first use."""
        broker = self._broker_of(asyncio.get_running_loop())
        if not broker.is_open:
            await self._close_left_behind()
            await broker.open()
        return broker

    def _broker_of(self, loop: asyncio.AbstractEventLoop) -> Broker:
        if self._pid != os.getpid():
            self._brokers = {}
            self._pid = os.getpid()
        broker = self._brokers.get(loop)
        if broker is None:
            made = Broker(self.url, config=self.broker_config, clock=self.clock)
            broker = self._brokers.setdefault(loop, made)  # Several threads may ask for the bridge's.
        return broker

    async def _close_left_behind(self) -> None:
        """Close what event loops that have ended left open."""
        for loop in [loop for loop in list(self._brokers) if loop.is_closed()]:
            left = self._brokers.pop(loop, None)
            if left is not None:
                await left.close()

    async def open(self) -> Self:
        """Open on this event loop now, instead of on first use."""
        await self.opened()
        return self

    async def close(self) -> None:
        """Close what this event loop has open."""
        broker = self._brokers.pop(asyncio.get_running_loop(), None)
        if broker is not None:
            await broker.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self.call(self.open)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self.close)
        self._bridge.stop()

    def call(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Run a coroutine of this app for synchronous code, and wait for it."""
        loop = _running_loop()
        if loop is not None and (loop in self._brokers or self._bridge.is_on(loop)):
            raise InvalidState(
                "this is the event loop that the app runs on, and a synchronous call would block it: "
                "use aenqueue, aresult and the other async twins here"
            )
        return self._bridge.run(work)

    # For tasks.

    def told_enqueued(self, job: NewJob, enqueued: Enqueued) -> None:
        if not enqueued.created:
            return
        if self.meter is not None:
            self.meter.enqueued(job)
        if self.events.wants("job.enqueued"):
            self.events.emit(Event("job.enqueued", enqueued.id, job.queue, job.task))

    def __repr__(self) -> str:
        tasks = len(self.tasks) + len(self.handlers)
        return f"App({without_password(self.url)!r}, name={self.name!r}, tasks={tasks})"


class TaskDecorator(Protocol):
    """``@app.task(...)``: gives a ``Task`` with the function's own parameters, without the ``Context``."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Anything, P], Coroutine[Any, Any, R]], /
    ) -> Task[..., R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Anything, P], R], /) -> Task[..., R, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


def known_apps() -> list[App]:
    """The apps of this process."""
    return list(_apps)


def _with_results(config: BrokerConfig) -> BrokerConfig:
    """Keep done jobs for an hour where nothing is said; ``Retention(done=0)`` keeps none."""

    def keeping(queue: QueueConfig) -> QueueConfig:
        return replace(queue, retention=_keeping(queue.retention)) if queue.retention else queue

    queues = {name: keeping(queue) for name, queue in config.queues.items()}
    return replace(
        config, default=keeping(config.default), queues=queues, retention=_keeping(config.retention)
    )


def _keeping(retention: Retention) -> Retention:
    return replace(retention, done=KEPT_DONE) if retention.done is None else retention


def _same_function(one: Any, other: Any) -> bool:
    """Whether a module was merely run again: reloaded, or as ``__main__`` and by its name, or typed anew."""
    old, new = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if old is None or new is None or one.__qualname__ != other.__qualname__:
        return one is other
    if old.co_filename.startswith("<") and new.co_filename.startswith("<"):
        return True
    imported_twice = one.__globals__ is not other.__globals__
    reloaded = old is not new and old.co_firstlineno == new.co_firstlineno
    return old.co_filename == new.co_filename and (imported_twice or reloaded)


def _shown(function: Any) -> str:
    code = getattr(function, "__code__", None)
    where = "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}{where}"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
