"""The app: a set of tasks and the storage of their jobs.

An app may be used from several event loops and threads of one process. Each loop has its own broker on the
same storage; synchronous code uses the bridge's loop. The app opens on first use.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, Self, TypeVar, Unpack, overload
from uuid import UUID

from msgspec.structs import replace

from dayjob.broker import Broker
from dayjob.context import Context, with_id
from dayjob.engines.base import Insertion
from dayjob.engines.registry import absolute, parse, without_password
from dayjob.errors import ConfigError, InvalidState
from dayjob.events import OUTCOMES, Event, Events, Observer
from dayjob.foreign_names import APP_METHODS, JOB_OPTIONS, TASK_OPTIONS, ForeignNames
from dayjob.handle import JobHandle, checked_id
from dayjob.model.config import BrokerConfig, QueueConfig, Retention
from dayjob.model.durations import Duration
from dayjob.model.job import DedupScope, DedupUntil, EndedJob, Enqueued, Job, JobState, NewJob, id_text
from dayjob.model.limits import Limit
from dayjob.model.names import KEY_BYTES, check_name
from dayjob.model.recurring import Missed, Recurring, Schedule
from dayjob.model.retry import DelayFunction, Retry, as_retry
from dayjob.runtime.bridge import Bridge, Wait, need_real_threads
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.ids import new_key
from dayjob.task import (
    C,
    Dedup,
    DedupKey,
    NamedTask,
    OnCancel,
    Options,
    P,
    Pool,
    R,
    Task,
    TaskConfig,
    Using,
    check_config,
    check_function,
    default_name,
    is_coroutine_function,
)  # fmt: skip

if TYPE_CHECKING:
    from dayjob.metrics import Meter
    from dayjob.tracing import Tracing

Answer = TypeVar("Answer")
Middleware = (
    Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]
    | Callable[[Context, Callable[[], Any]], Any]
)
"""A coroutine function, called on the worker's event loop; or a plain one, called where the handler runs."""
TenantScope = Callable[[str], AbstractAsyncContextManager[Any]]
Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]

DONE_RETENTION = timedelta(hours=1)
"""The default retention of an app's done jobs, so that results can be read."""

_apps: weakref.WeakSet[App] = weakref.WeakSet()
_memory_refused = False


class Runner(Protocol):
    """Runs the waiting jobs after each enqueue. ``run`` is called in the thread of a synchronous caller."""

    def run(self) -> None: ...

    async def arun(self) -> None: ...


class Anything:
    """For type checkers: a function whose first parameter accepts this accepts any value, also a ``Context``.

    A type checker can't decide whether that parameter belongs to the call, so it does not check such calls.
    """


class App(ForeignNames, names=APP_METHODS):
    """A set of tasks on one storage URL."""

    setup_modules: tuple[str, ...] = ()
    """The modules that a child process of a worker imports before the module of a task."""

    def __init__(
        self,
        url: str,
        *,
        config: BrokerConfig | None = None,
        middleware: Sequence[Middleware] = (),
        tenant_scope: TenantScope | None = None,
        lifespan: Lifespan | None = None,
        name: str = "dayjob",
        values_in_errors: bool = False,
    ) -> None:
        """``values_in_errors``: errors of arguments and results contain the value, which may be a secret."""
        check_name(name, "app name", KEY_BYTES)
        location = parse(url)
        private = location.parts.scheme == "memory" and not location.parts.netloc
        self.url = f"memory://app-{new_key().hex()}" if private else absolute(url)
        self.name = name
        self.values_in_errors = values_in_errors
        self.config = _with_results(config or BrokerConfig())
        self.middleware = tuple(middleware)
        self.tenant_scope = tenant_scope
        self.lifespan = lifespan
        self.tasks: dict[str, Task[Any, Any, Any]] = {}
        self.handlers: dict[str, Task[Any, Any, Any]] = {}
        self.events = Events()
        self.runner: Runner | None = None
        """Runs jobs after each enqueue. Set by ``dayjob.testing.eager``."""
        self.before_use: Callable[[Broker], Awaitable[None]] | None = None
        """Called with an open broker before each use. Set by ``dayjob.testing.sandbox``."""
        self.meter: Meter | None = None
        """Measures the jobs of this process. Set by ``dayjob.metrics.measure``."""
        self.tracing: Tracing | None = None
        """Traces jobs. Set by ``dayjob.tracing.trace``."""
        self.clock: Clock | None = None
        """The clock of brokers and workers. Set by tests before first use."""
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
        dedup_key: DedupKey | None = None,
        dedup_until: DedupUntil | None = None,
        dedup_max_delay: Duration | None = None,
        dedup_for: Duration | None = None,
        dedup_scope: DedupScope = "queue",
        max_attempts: int | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
        limits: Sequence[Limit] = (),
    ) -> TaskDecorator: ...

    def task(self, function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:  # type: ignore[misc]
        """Register a function as a task: ``@app.task`` or ``@app.task(queue="email", ...)``.

        ``timeout`` is in seconds. ``pool="process"`` runs it in a child process. ``cancel="interrupt"``
        cancels the coroutine or kills the process when the job is cancelled. ``dedup=True`` enqueues a call
        with equal arguments only once while one waits (``"settled"``: waits or runs). ``"latest"`` gives the
        waiting job the new arguments and run time, at most ``dedup_max_delay`` after its enqueue.
        ``dedup_key`` is a function of the arguments that returns the key. ``dedup_for`` holds the key for so
        many seconds, also after the job has ended. ``dedup_scope="global"`` counts jobs of all queues.
        ``cron="*/5 * * * *"`` or ``every=30`` (seconds) makes it a recurring job, which workers enqueue.
        ``limits`` are shared by all tasks that name them.
        """
        if function is None:
            return lambda decorated: self._register(decorated, name, options, raw=False)
        return self._register(function, name, options, raw=False)

    def handler(
        self, *, queue: str, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., C]], Task[[bytes], Any, C]]:
        """Register a function that is called with the raw ``Job`` of a queue, whose payload is bytes."""
        return lambda function: self._register(function, name, {"queue": queue, **options}, raw=True)

    def _register(
        self, function: Callable[..., Any], name: str | None, options: dict[str, Any], raw: bool
    ) -> Task[Any, Any, Any]:
        check_function(function)
        name = default_name(function) if name is None else name
        check_name(name, "task name", KEY_BYTES)
        unknown = options.keys() - set(TaskConfig.__struct_fields__)
        if unknown:
            first, known = min(unknown), ", ".join(TaskConfig.__struct_fields__)
            remedy = TASK_OPTIONS.get(first)
            raise ConfigError(
                f"task {name!r}: unknown option {first!r}: " + (remedy or f"the options are name, {known}")
            )
        if options.get("retry") is not None:
            options["retry"] = as_retry(options["retry"], f"task {name!r}: retry")
        config = check_config(TaskConfig(**options), name)
        if config.retention is not None:
            config = replace(config, retention=_keep_done(config.retention))
        task: Task[Any, Any, Any] = Task(self, function, name, config, raw)
        if task.recurring is not None and task.arguments is not None and task.arguments.required:
            missing = ", ".join(sorted(task.arguments.required))
            raise ConfigError(
                f"task {name!r} is recurring and is called without arguments: give {missing} a default, "
                "or schedule it with args"
            )
        key, registry = (config.queue, self.handlers) if raw else (name, self.tasks)
        other = registry.get(key)
        if other is not None and not _same_function(other.function, function):
            kind = "handler for queue" if raw else "task named"
            raise ConfigError(
                f"there is already a {kind} {key!r}, {_shown(other.function)}, "
                f"and this is {_shown(function)}: rename one of them"
            )
        registry[key] = task
        return task

    def find(self, job: Job | Schedule) -> Task[Any, Any, Any] | None:
        """Return the task of a job, or of the jobs of a schedule."""
        return self.tasks.get(job.task) if job.task else self.handlers.get(job.queue)

    def recurring(self) -> list[Recurring]:
        """Return the recurring jobs that ``cron=`` and ``every=`` of this app's tasks declare."""
        return [recurring for task in self._registered() if (recurring := task.recurring) is not None]

    def limits(self) -> list[Limit]:
        """Return the limits that this app's tasks declare, by name. Raise if two declarations differ."""
        found: dict[str, Limit] = {}
        for limit in (limit for task in self._registered() for limit in task.config.limits):
            other = found.setdefault(limit.name, limit)
            if other.settings() != limit.settings():
                raise ConfigError(
                    f"the limit {limit.name!r} is declared as {limit!r} and as {other!r}: declare it once, "
                    "and pass it to both tasks"
                )
        return list(found.values())

    def queues(self) -> tuple[str, ...]:
        """Return the queues of the tasks and handlers, in the order of registration."""
        return tuple(dict.fromkeys(task.config.queue for task in self._registered()))

    def _registered(self) -> list[Task[Any, Any, Any]]:
        return [*self.tasks.values(), *self.handlers.values()]

    def on(self, pattern: str) -> Callable[[Observer], Observer]:
        """Register an observer of events: ``@app.on("job.dead")``, ``@app.on("job.*")``."""

        def register(observer: Observer) -> Observer:
            self.events.add(pattern, observer)
            return observer

        return register

    def wrapped(self, context: Context, call: Callable[[], Any], *, on_loop: bool) -> Callable[[], Any]:
        """Return the call inside the coroutine middleware, for the worker's event loop and any handler.

        Without ``on_loop`` inside the plain middleware, for the thread or the process of a plain handler.
        """
        for middleware in reversed(self.middleware):
            if is_coroutine_function(middleware) is on_loop:
                call = partial(middleware, context, call)
        return call

    # Jobs.

    def send(
        self, task: str, args: Mapping[str, Any] | None = None, /, **options: Unpack[Options]
    ) -> JobHandle[Any]:
        """Enqueue a call of a task by its name, for a producer without its code.

        ``args`` are the arguments by parameter name, and ``options`` those of ``task.using``. The queue is
        ``"default"`` unless it is an option. The worker checks the arguments, and its task has the retry
        policy. A task of this app is enqueued as by ``task.enqueue``: with its own options, and checked here.
        """
        return self._by_name(task, args, options).enqueue_many([args or {}])[0]

    async def asend(
        self, task: str, args: Mapping[str, Any] | None = None, /, **options: Unpack[Options]
    ) -> JobHandle[Any]:
        """``send`` on an event loop."""
        return (await self._by_name(task, args, options).aenqueue_many([args or {}]))[0]

    def _by_name(self, task: str, args: Mapping[str, Any] | None, options: Options) -> Using[..., Any]:
        if args is not None and not isinstance(args, Mapping):
            raise TypeError(
                f"{task}: the arguments are a {type(args).__name__}: "
                "pass a mapping of arguments by parameter name"
            )
        for name in options.keys() - Options.__annotations__.keys() - JOB_OPTIONS.keys():
            raise TypeError(
                f"{task}: {name}=... is no option of the job: write send({task!r}, {{{name!r}: ...}}) for an "
                f"argument of the task; the options are {', '.join(Options.__annotations__)}"
            )
        return Using(self.tasks.get(task) or NamedTask(self, task), options)

    def job(self, id: str | UUID) -> JobHandle[Any]:
        """Return the handle of a job by its id. Nothing is read. ``task.job(id)`` types the result."""
        return JobHandle(self, checked_id(id), False, None)

    def store(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Enqueued]:
        """Store the jobs of synchronous code: at once, or in the open transaction of the connection.

        An app of a web framework overrides this and ``astore`` to use the transaction of the caller.
        """
        if connection is None:
            return self.call(partial(App.astore, self, jobs))
        broker = self.call(self.opened)
        return broker.enqueue_tx(jobs, connection)  # Only the caller's thread may use the connection.

    async def astore(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Enqueued]:
        """``store`` on an event loop."""
        return await (await self.opened()).enqueue_many(jobs, connection=connection)

    def checked(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Return the jobs with ids, to store them later. A job that ``store`` refuses is refused here."""
        self.broker.check(jobs)
        return [with_id(job) for job in jobs]

    # Opening and closing.

    @property
    def broker(self) -> Broker:
        """The broker of the running event loop, or of the bridge for threads without one."""
        loop = _running_loop()
        return self._broker_of(self._bridge.start() if loop is None else loop)

    @property
    def broker_config(self) -> BrokerConfig:
        """The configuration of this app's brokers. Workers start the duties, unless ``config`` has none."""
        return replace(self.config, duties=False)

    async def opened(self) -> Broker:
        """Return the broker of this event loop, opened on first use."""
        broker = self._broker_of(asyncio.get_running_loop())
        if not broker.is_open:
            for loop in [loop for loop in list(self._brokers) if loop.is_closed()]:
                orphaned = self._brokers.pop(loop, None)
                if orphaned is not None:
                    await orphaned.close()
            await broker.open()
        if self.before_use is not None:
            await self.before_use(broker)
        return broker

    def _broker_of(self, loop: asyncio.AbstractEventLoop) -> Broker:
        if self._pid != os.getpid():
            self._brokers = {}
            self._pid = os.getpid()
        broker = self._brokers.get(loop)
        if broker is None:
            made = Broker(
                self.url, config=self.broker_config, clock=self.clock, on_ended=self.on_ended,
                on_enqueued=self.on_enqueued,
            )  # fmt: skip
            if _memory_refused and not made.capabilities.persistent:
                raise InvalidState(
                    f"{self.url}: its jobs are in the memory of the worker, and this is a child process: "
                    "enqueue with ctx.then(task.bind(...)), or use sqlite:///"
                )
            broker = self._brokers.setdefault(loop, made)  # Several threads may use the bridge's broker.
        return broker

    async def open(self) -> Self:
        """Open the app on this event loop now, instead of on first use."""
        await self.opened()
        return self

    async def close(self) -> None:
        """Close the broker of this event loop."""
        broker = self._brokers.pop(asyncio.get_running_loop(), None)
        if broker is not None:
            await broker.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self._bridge.enter()
        try:
            self.call(self.open)
        except BaseException:
            self._bridge.leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._bridge.leave(self.close)

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, Answer]],
        keep_open: bool = True,
        wait: Wait[Answer] | None = None,
    ) -> Answer:
        """Run a coroutine of this app for synchronous code, and return its result.

        ``with app:`` in another thread does not close the app before the end of the call, unless
        ``keep_open`` is false: then the call raises ``Closed``. ``wait`` waits for the result.
        """
        refuse_event_loop()
        return self._bridge.run(work, keep_open, wait)

    # For tasks.

    def on_enqueued(self, jobs: Sequence[Insertion]) -> None:
        """Count the jobs that this process stored, and emit their events."""
        if self.meter is not None:
            for job in jobs:
                self.meter.enqueued(job.queue, job.task)
        if "job.enqueued" in self.events.wanted:
            now = (self.clock or SYSTEM).now()
            for job in jobs:
                self.events.emit(
                    Event("job.enqueued", id_text(job.key), job.queue, job.task, new_state=job.state(now))
                )

    def on_ended(self, ended: Sequence[EndedJob]) -> None:
        """Count the jobs that this process changed without a worker, and emit their events."""
        for job in ended:
            requeued = job.old_state is JobState.DEAD
            if self.meter is not None and not requeued:
                self.meter.ended(job)
            for name in ("job.requeued",) if requeued else OUTCOMES[job.state]:
                if name in self.events.wanted:
                    self.events.emit(
                        Event(name, job.id, job.queue, job.task, None, job.old_state, job.state, job.error)
                    )

    def __repr__(self) -> str:
        tasks = len(self.tasks) + len(self.handlers)
        return f"App({without_password(self.url)!r}, name={self.name!r}, tasks={tasks})"


class TaskDecorator(Protocol):
    """``@app.task(...)``: returns a ``Task`` with the function's parameters, without the ``Context``."""

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
    """Return the apps of this process."""
    return list(_apps)


def refuse_memory() -> None:
    """Refuse the use of ``memory://`` apps in a child process of a worker: their jobs would be lost."""
    global _memory_refused
    _memory_refused = True


def _with_results(config: BrokerConfig) -> BrokerConfig:
    """Return the config with the default retention of done jobs. ``Retention(done=0)`` keeps none."""

    def with_default(queue: QueueConfig) -> QueueConfig:
        return replace(queue, retention=_keep_done(queue.retention)) if queue.retention else queue

    queues = {name: with_default(queue) for name, queue in config.queues.items()}
    return replace(
        config, default=with_default(config.default), queues=queues, retention=_keep_done(config.retention)
    )


def _keep_done(retention: Retention) -> Retention:
    return replace(retention, done=DONE_RETENTION) if retention.done is None else retention


def _same_function(one: Any, other: Any) -> bool:
    """Return whether both are one function of a module that was imported twice, reloaded or entered again."""
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
    source = "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}{source}"


def refuse_event_loop() -> None:
    """Raise ``InvalidState`` in a thread whose event loop a synchronous call would block."""
    if _running_loop() is not None:
        need_real_threads()  # All greenlets run in the thread of the loop.
        raise InvalidState(
            "an event loop runs in this thread, and a synchronous call would block it: "
            "use aenqueue, aresult and the other async methods here, or call in asyncio.to_thread"
        )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
