"""Tasks: functions that can be called directly, or enqueued and called by a worker.

``enqueue`` and ``aenqueue`` have the function's parameters. They bind and encode the call, so that a wrong
call fails at enqueue.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, Unpack, get_args
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from dayjob.context import CURRENT, Context, detached
from dayjob.engines.base import BATCH, BATCH_BYTES
from dayjob.errors import ConfigError
from dayjob.foreign_names import JOB_OPTIONS, TASK_METHODS, ForeignNames
from dayjob.handle import JobHandle, checked_id
from dayjob.model.codec import Arguments, ResultDecoder, encode_arguments, hints_of
from dayjob.model.config import Retention, check_max_attempts, check_priority
from dayjob.model.durations import Duration, to_micros, to_seconds_or_none
from dayjob.model.job import (
    DedupScope,
    DedupUntil,
    Enqueued,
    JobOptions,
    Latest,
    NewJob,
    by_name,
    check_dedup,
)
from dayjob.model.limits import MAX_LIMITS, Limit
from dayjob.model.names import KEY_BYTES, as_config_error, check_name, check_queue, shown
from dayjob.model.recurring import Missed, Recurring, check_timing
from dayjob.model.retry import Retry

if TYPE_CHECKING:
    from dayjob.app import App

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

Pool = Literal["thread", "process"]
OnCancel = Literal["signal", "interrupt"]
DedupKey = Callable[..., "str | None"]
Dedup = bool | DedupUntil | Latest | DedupKey


class Options(JobOptions, total=False):
    """The options of ``using``."""

    queue: str
    connection: Any


class TaskConfig(Struct, frozen=True):
    """The options of ``@app.task``."""

    queue: str = "default"
    priority: int | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    pool: Pool | None = None
    cancel: OnCancel = "signal"
    retention: Retention | None = None
    dedup: Dedup | None = None
    dedup_key: DedupKey | None = None
    dedup_until: DedupUntil | None = None
    dedup_max_delay: Duration | None = None
    dedup_for: Duration | None = None
    dedup_scope: DedupScope = "queue"
    max_attempts: int | None = None
    cron: str | None = None
    every: Duration | None = None
    timezone: str = "UTC"
    missed: Missed = "once"
    limits: Sequence[Limit] = ()

    @property
    def deduplicates(self) -> bool:
        """Whether its calls have dedup keys."""
        return bool(self.dedup) or self.dedup_key is not None or self.dedup_for is not None

    @property
    def until(self) -> DedupUntil:
        if self.dedup_until is not None:
            return self.dedup_until
        return "settled" if self.dedup == "settled" else "claimed"


class Bound(Generic[R]):
    """A checked call, ready to enqueue: the result of ``task.bind(...)``."""

    __slots__ = ("_job",)

    def __init__(self, job: NewJob) -> None:
        self._job = job

    def new_job(self) -> NewJob:
        return self._job


Call = tuple[Any, ...] | Mapping[str, Any] | Bound[Any]
"""An item of ``enqueue_many``: positional arguments, keyword arguments, or ``task.bind(...)``."""

CHUNK = 1000
"""How many calls ``enqueue_many(..., atomic=False)`` stores in one commit."""


class Task(ForeignNames, Generic[P, R, C], names=TASK_METHODS):
    """A function registered under a name, created by ``@app.task``."""

    def __init__(
        self, app: App, function: Callable[..., C], name: str, config: TaskConfig, raw: bool
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.config = config
        self.raw = raw
        self.is_async = is_coroutine_function(function)
        self.pool: Pool | None = (
            "process" if config.pool == "process" else None if self.is_async else "thread"
        )
        """Where a worker runs it. None: on the event loop."""
        self.wants_context = _first_is_context(function)
        self.arguments = None if raw else Arguments(
            function, name, skip=int(self.wants_context), values_in_errors=app.values_in_errors
        )  # fmt: skip
        self.result = ResultDecoder(function, name, values_in_errors=app.values_in_errors)
        self.timeout = to_seconds_or_none(config.timeout, "timeout")
        self._without_options: Using[P, R] = Using(self, {})
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function directly. A task with a ``Context`` parameter gets the current one."""
        if self.wants_context and not (args and isinstance(args[0], Context)):
            return self.function(CURRENT.get() or detached(self.name), *args, **kwargs)
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> Using[P, R]:
        """Return the task with these options for its jobs."""
        return Using(self, options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a call from synchronous code. The job is durable when this returns."""
        return self._without_options.enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a call. The job is durable when this returns."""
        return await self._without_options.aenqueue(*args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """Return a checked call, for ``enqueue_many`` and ``ctx.then``."""
        return self._without_options.bind(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Call], *, atomic: bool = True) -> list[JobHandle[R]]:
        """Enqueue up to 10,000 calls, all or none: tuples, mappings, or ``bind(...)``.

        With ``atomic=False`` any number of calls, of any iterable, is stored in commits of up to 1,000. If
        one fails, the calls of the commits before are stored, and a note of the error has their number.
        """
        return self._without_options.enqueue_many(calls, atomic=atomic)

    async def aenqueue_many(
        self, calls: Iterable[Call] | AsyncIterable[Call], *, atomic: bool = True
    ) -> list[JobHandle[R]]:
        """``enqueue_many`` on an event loop, also of an asynchronous iterable."""
        return await self._without_options.aenqueue_many(calls, atomic=atomic)

    def job(self, id: str | UUID) -> JobHandle[R]:
        """Return the handle of a job of this task, by its id. Nothing is read."""
        return JobHandle(self.app, checked_id(id), False, self.result)

    def dedup_key(self, payload: bytes, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
        """Return the dedup key of a call: by the function of the task, else of all arguments."""
        function = self.config.dedup if callable(self.config.dedup) else self.config.dedup_key
        if function is not None:
            return function(*args, **kwargs)
        call = payload if self.arguments is None else self.arguments.canonical(args, kwargs)
        return hashlib.sha256(call).hexdigest()

    def limits(
        self, args: Sequence[Any], kwargs: dict[str, Any], units: Mapping[str, int] | None
    ) -> tuple[str, ...]:
        """Return the limits of a call, each with its key."""
        for limit in self.config.limits:
            limit.check_units((units or {}).get(limit.name, 1))
        if self.arguments is not None:
            args, kwargs = (), self.arguments.bound(args, kwargs)
        return tuple(limit.bucket(args, kwargs) for limit in self.config.limits)

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        if self.arguments is not None:
            return self.arguments.encode(args, kwargs)
        if kwargs or len(args) > 1 or not all(isinstance(arg, bytes) for arg in args):
            raise TypeError(f"{self.name}: a handler's job takes one argument, its payload as bytes")
        return args[0] if args else b""

    @property
    def max_attempts(self) -> int | None:
        """The attempts of its jobs. None: those of the queue."""
        config = self.config
        if config.max_attempts is not None:
            return config.max_attempts
        return None if config.retry is None else config.retry.attempts

    @property
    def recurring(self) -> Recurring | None:
        """The recurring job that ``cron`` or ``every`` of ``@app.task`` declares. Workers schedule it."""
        config = self.config
        if config.cron is None and config.every is None:
            return None
        return Recurring(
            self.name, config.cron, config.every, task=self, timezone=config.timezone, missed=config.missed
        )

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.config.queue!r})"


class NamedTask:
    """A task whose code is elsewhere, for ``app.send``. Its arguments are checked when it runs."""

    raw = False
    arguments = None
    result = None
    max_attempts = None
    config = TaskConfig()

    def __init__(self, app: App, name: str) -> None:
        check_name(name, "task name", KEY_BYTES)
        self.app = app
        self.name = name

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        if args:
            raise TypeError(
                f"{self.name}: {len(args)} arguments are not named: "
                "pass a mapping of arguments by parameter name"
            )
        return encode_arguments(self.name, kwargs, self.app.values_in_errors)

    def dedup_key(self, payload: bytes, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
        return None

    def limits(
        self, args: Sequence[Any], kwargs: dict[str, Any], units: Mapping[str, int] | None
    ) -> tuple[str, ...]:
        return ()


class Using(ForeignNames, Generic[P, R], names=TASK_METHODS):
    """A task with options for its jobs."""

    __slots__ = ("_connection", "_derives_key", "_options", "_task", "_template")

    def __init__(self, task: Task[P, R, Any] | NamedTask, options: Options) -> None:
        unknown = options.keys() - Options.__annotations__.keys()
        for name in sorted(unknown):
            option = JOB_OPTIONS.get(name)
            known = f"the options are {', '.join(Options.__annotations__)}"
            raise TypeError(
                f"using({name}=...): there is no such option: {f'write {option}=...' if option else known}"
            )
        self._task = task
        self._options = options
        given = dict(options)
        self._connection = given.pop("connection", None)
        config = task.config
        key = given.pop("dedup_key", None)
        latest = given.pop("dedup", "latest" if config.dedup == "latest" else None)
        self._template = NewJob(
            given.pop("queue", config.queue),  # type: ignore[arg-type]
            task="" if task.raw else task.name,
            priority=given.pop("priority", config.priority),  # type: ignore[arg-type]
            max_attempts=given.pop("max_attempts", task.max_attempts),  # type: ignore[arg-type]
            dedup_key=None if key is None else scoped(task.name, key),  # type: ignore[arg-type]
            dedup_until=given.pop("dedup_until", config.until),  # type: ignore[arg-type]
            dedup=latest,  # type: ignore[arg-type]
            dedup_max_delay=given.pop("dedup_max_delay", config.dedup_max_delay if latest else None),  # type: ignore[arg-type]
            dedup_for=given.pop("dedup_for", config.dedup_for),  # type: ignore[arg-type]
            dedup_scope=given.pop("dedup_scope", config.dedup_scope),  # type: ignore[arg-type]
            **given,  # type: ignore[arg-type]
        )
        asked = self._template.dedup is not None or self._template.dedup_for is not None
        self._derives_key = key is None and (config.deduplicates or asked)
        if isinstance(task, NamedTask):
            self._template = by_name(self._template)

    def using(self, **options: Unpack[Options]) -> Using[P, R]:
        """Return the task with more options."""
        return Using(self._task, {**self._options, **options})

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        if self._connection is not None:
            raise TypeError(
                f"{self._task.name}: a bound call has no connection: pass it to using(...).enqueue_many"
            )
        job = self._new_job(args, kwargs)
        tracing = self._task.app.tracing
        return Bound(job if tracing is None else tracing.stamped(job))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return self._enqueue([self._new_job(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return (await self._aenqueue([self._new_job(args, kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[Call], *, atomic: bool = True) -> list[JobHandle[R]]:
        handles: list[JobHandle[R]] = []
        batch = Batch(atomic)
        with _counted(handles):
            for call in calls:
                if batch.add(self._from_call(call)):
                    handles += self._enqueue(batch.take())
            return handles + self._enqueue(batch.take())

    async def aenqueue_many(
        self, calls: Iterable[Call] | AsyncIterable[Call], *, atomic: bool = True
    ) -> list[JobHandle[R]]:
        handles: list[JobHandle[R]] = []
        batch = Batch(atomic)
        with _counted(handles):
            if isinstance(calls, AsyncIterable):
                async for call in calls:
                    if batch.add(self._from_call(call)):
                        handles += await self._aenqueue(batch.take())
            else:
                for call in calls:
                    if batch.add(self._from_call(call)):
                        handles += await self._aenqueue(batch.take())
            return handles + await self._aenqueue(batch.take())

    def _enqueue(self, jobs: list[NewJob]) -> list[JobHandle[R]]:
        if not jobs:
            return []
        app = self._task.app
        with nullcontext(jobs) if app.tracing is None else app.tracing.producing(jobs) as traced:
            handles = self._handles(app.store(traced, self._connection))
        if app.runner is not None:
            app.runner.run()
        return handles

    async def _aenqueue(self, jobs: list[NewJob]) -> list[JobHandle[R]]:
        if not jobs:
            return []
        app = self._task.app
        if app.tracing is None:
            handles = self._handles(await app.astore(jobs, self._connection))
        else:
            with app.tracing.producing(jobs) as traced:
                handles = self._handles(await app.astore(traced, self._connection))
        if app.runner is not None:
            await app.runner.arun()
        return handles

    def _new_job(self, args: Sequence[Any], kwargs: dict[str, Any]) -> NewJob:
        task = self._task
        try:
            job = replace(self._template, payload=task.encode(args, kwargs))
        except TypeError:
            _refuse_options(task, kwargs)
            raise
        if self._derives_key:
            key = task.dedup_key(job.payload, args, kwargs)
            if key is not None:
                job = replace(job, dedup_key=scoped(task.name, key))
            elif task.config.deduplicates:  # The function returned no key for this call.
                job = replace(job, dedup=None, dedup_max_delay=None, dedup_for=None)
        if task.config.limits:
            job = replace(job, limits=(*task.limits(args, kwargs, job.units), *job.limits))
        return job

    def _from_call(self, call: Call) -> NewJob:
        if isinstance(call, tuple):
            return self._new_job(call, {})
        if isinstance(call, Bound):
            job = call.new_job()
            if job.task != self._template.task:
                raise TypeError(
                    f"{job.task!r} was bound, and this is {self._task.name!r}: enqueue it with its own task"
                )
            return job
        if isinstance(call, Mapping):
            return self._new_job((), dict(call))
        raise TypeError(
            f"{call!r} is a {type(call).__name__}: pass a tuple, a mapping, or {self._task.name}.bind()"
        )

    def _handles(self, stored: list[Enqueued]) -> list[JobHandle[R]]:
        task = self._task
        return [JobHandle(task.app, enqueued.id, enqueued.created, task.result) for enqueued in stored]


class Batch(Struct):
    """The jobs of one commit of ``enqueue_many``: all, or up to ``CHUNK`` jobs and ``BATCH_BYTES``."""

    _atomic: bool
    _jobs: list[NewJob] = []
    _bytes: int = 0

    def add(self, job: NewJob) -> bool:
        """Add a job. Return whether the batch is full, and must be stored before the next one."""
        self._jobs.append(job)
        if self._atomic:
            if len(self._jobs) > BATCH:
                raise ValueError(
                    f"more than {BATCH:,} calls in one batch: pass atomic=False to store them in several "
                    "commits, or fewer calls"
                )
            return False
        self._bytes += len(job.payload)
        return len(self._jobs) >= CHUNK or self._bytes >= BATCH_BYTES

    def take(self) -> list[NewJob]:
        """Return the jobs, and start the next batch."""
        jobs, self._jobs, self._bytes = self._jobs, [], 0
        return jobs


@contextmanager
def _counted(handles: list[JobHandle[R]]) -> Iterator[None]:
    """Add the number of the calls that are stored to an error."""
    try:
        yield
    except Exception as error:
        if handles:
            error.add_note(f"The first {len(handles):,} calls are stored.")
        raise


def _refuse_options(task: Task[..., Any, Any] | NamedTask, kwargs: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for an option of ``using`` among the arguments of a call."""
    parameters = set() if task.arguments is None else task.arguments.names
    for given, value in kwargs.items():
        option = JOB_OPTIONS.get(given, given)
        if given not in parameters and option in Options.__annotations__:
            raise TypeError(
                f"{task.name}: {given}={shown(value)} is no argument of the task but an option of the job: "
                f"write using({option}=...).enqueue(...)"
            ) from None


def scoped(task: str, key: str) -> str:
    """Return a dedup key that belongs to the task only. The length prefix makes each pair unique."""
    check_name(key, "dedup key", KEY_BYTES - len(task.encode()) - 8)
    return f"{len(task)}:{task}:{key}"


def unscoped(task: str, key: str | None) -> str | None:
    """Return a stored dedup key as the caller gave it: the reverse of ``scoped``."""
    return None if key is None else key.removeprefix(f"{len(task)}:{task}:")


def check_config(config: TaskConfig, name: str) -> TaskConfig:
    """Return the config. Raise ``ConfigError`` with the task's name for invalid options."""
    with as_config_error(f"task {name!r}: "):
        check_queue(config.queue)
        if config.priority is not None:
            check_priority(config.priority, "priority")
        if config.max_attempts is not None:
            check_max_attempts(config.max_attempts, "max_attempts")
        if config.timeout is not None and to_micros(config.timeout, "timeout") == 0:
            raise ValueError("timeout=0: pass some seconds, or None for no limit")
        for field, value, allowed in (
            ("pool", config.pool, (None, "thread", "process")),
            ("cancel", config.cancel, ("signal", "interrupt")),
        ):
            if value not in allowed:
                raise ValueError(f"{field}={value!r}: pass one of {allowed}")
        if config.cron is not None or config.every is not None:
            check_timing(config.cron, config.every, config.timezone, config.missed)
        if config.retention is not None and not isinstance(config.retention, Retention):
            raise ValueError(f"retention={config.retention!r}: pass a Retention")
        _check_dedup(config)
    check_limits(config.limits, name)
    return config


def _check_dedup(config: TaskConfig) -> None:
    dedup, function = config.dedup, config.dedup_key
    if dedup not in (None, True, False, "claimed", "settled", "latest") and not callable(dedup):
        raise ValueError(
            f"dedup={dedup!r}: pass True, 'claimed', 'settled', 'latest', or a function of the key"
        )
    if function is not None and (callable(dedup) or not callable(function)):
        raise ValueError(f"dedup={dedup!r} and dedup_key={function!r}: pass one function of the key")
    if config.dedup_until not in (None, "claimed", "settled"):
        raise ValueError(f"dedup_until={config.dedup_until!r}: pass 'claimed' or 'settled'")
    if config.dedup_until is not None and dedup in ("claimed", "settled"):
        raise ValueError(f"dedup={dedup!r} and dedup_until={config.dedup_until!r}: pass one of the two")
    latest = "latest" if dedup == "latest" else None
    check_dedup(latest, config.dedup_max_delay, config.dedup_for, config.dedup_scope)


def check_limits(limits: object, name: str) -> None:
    if isinstance(limits, str) or not isinstance(limits, Sequence):
        raise ConfigError(f"task {name!r}: limits={limits!r}: pass a list of Limit")
    for limit in limits:
        if not isinstance(limit, Limit) or not limit.name:
            raise ConfigError(f"task {name!r}: limits has {limit!r}: pass a Limit with a name")
    if len({limit.name for limit in limits}) < len(limits) or len(limits) > MAX_LIMITS:
        raise ConfigError(
            f"task {name!r} has {len(limits)} limits: pass {MAX_LIMITS} at most, each with another name"
        )


def default_name(function: Callable[..., Any]) -> str:
    """Return module and qualified name. For ``__main__``, the module name that a worker imports."""
    qualname = getattr(function, "__qualname__", None)
    if qualname is None or "<lambda>" in qualname:
        raise ConfigError(f"{function!r} has no name: pass name=... for the task")
    module = function.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules.get(module)
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        if spec is not None and spec.name not in ("__main__", "__mp_main__"):
            module = spec.name
        elif file:
            module = Path(file).stem
    return f"{module}.{qualname}"


def check_function(function: Any) -> None:
    """Raise ``ConfigError`` for a function that a worker can't call."""
    if not callable(function) or isinstance(function, type | Task):
        raise ConfigError(f"@app.task on {function!r}: decorate a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{function!r} is a generator, which a worker can't run: return a value instead")
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), None)
    if scope and not scope.endswith("<locals>") and first in ("self", "cls"):
        raise ConfigError(
            f"{function!r} is a method, and a worker has no {first!r} for it: make it a function, "
            "or a staticmethod"
        )


def is_coroutine_function(function: Any) -> bool:
    """Return whether a call of the function, or of the object, returns a coroutine."""
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def _first_is_context(function: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return False
    annotation = parameters[0].annotation
    if isinstance(annotation, str) or get_args(annotation):
        annotation = hints_of(function).get(parameters[0].name)
    parts = get_args(annotation)  # Not a set: the metadata of an ``Annotated`` may be unhashable.
    return annotation is Context or (len(parts) == 2 and Context in parts and NoneType in parts)
