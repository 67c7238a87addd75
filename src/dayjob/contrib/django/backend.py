"""The backend of Django's tasks: ``TASKS = {"default": {"BACKEND": "dayjob.contrib.django.DayjobBackend"}}``.

A task of ``django.tasks`` is a task of the site's app under its module path. Its jobs are like others: in the
site's transactions, in the dashboard, run by ``manage.py dayjob worker``. A job carries the options of its
``Task`` in a header, so that ``get_result`` returns them in any process.

As Django specifies, an exception fails the task permanently, unless ``OPTIONS`` has ``max_attempts``. A run
that ended with its worker is repeated.
"""

from __future__ import annotations

import builtins
import re
from datetime import datetime
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string
from msgspec import Struct

import dayjob
from dayjob import NORMAL, Context, Job, JobState, Retry, errors
from dayjob.contrib.django.configuration import TASK_HEADER
from dayjob.contrib.django.site_app import app
from dayjob.contrib.django.tasks_api import (
    BaseTaskBackend,
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
    task_finished,
    task_started,
)  # fmt: skip
from dayjob.task import is_coroutine_function

OPTIONS = {"max_attempts": int, "timeout": int | float}
"""The keys of ``OPTIONS`` and the types of their values."""

PRIORITY_STEP = 9
"""A Django priority of 100, the highest, is ``dayjob.HIGH``; lower numbers of dayjob run first."""

_STATUS = {
    JobState.SCHEDULED: TaskResultStatus.READY,
    JobState.PENDING: TaskResultStatus.READY,
    JobState.LIMITED: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.DONE: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}

_CLASS = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")
"""The class of an exception at the beginning of its first line."""


class Header(Struct, omit_defaults=True):
    """The options of a ``Task`` that a job has no field for."""

    backend: str
    enqueued_at: datetime
    run_after: datetime | None = None


class Call(Struct):
    """The payload of a job, by the parameters of the dayjob task."""

    args: list[Any]
    kwargs: dict[str, Any]


class DayjobBackend(BaseTaskBackend):  # type: ignore[misc]
    """Stores tasks as jobs of the site's app."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        self.validate_task(task)
        result = self._new_result(task, args, kwargs)
        handle = _dayjob_task(task).using(**_options(result)).enqueue(result.args, result.kwargs)
        object.__setattr__(result, "id", handle.id)
        task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        self.validate_task(task)
        result = self._new_result(task, args, kwargs)
        handle = await _dayjob_task(task).using(**_options(result)).aenqueue(result.args, result.kwargs)
        object.__setattr__(result, "id", handle.id)
        await sync_to_async(task_enqueued.send)(type(self), task_result=result)
        return result

    def _new_result(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        return TaskResult(
            task=task, id="", status=TaskResultStatus.READY, enqueued_at=timezone.now(), started_at=None,
            last_attempted_at=None, finished_at=None, args=args, kwargs=kwargs, backend=self.alias, errors=[],
            worker_ids=[],
        )  # fmt: skip

    def get_result(self, result_id: str) -> TaskResult:
        return _found(app.job(result_id).record(), result_id)

    async def aget_result(self, result_id: str) -> TaskResult:
        return _found(await app.job(result_id).arecord(), result_id)

    def check(self, **_: Any) -> list[Any]:
        from django.core.checks import Error

        wrong = [
            name
            for name, value in self.options.items()
            if name not in OPTIONS or isinstance(value, bool) or not isinstance(value, OPTIONS[name])
        ]
        return [
            Error(
                f"OPTIONS of the task backend {self.alias!r} has {name}={self.options[name]!r}.",
                hint="The options are max_attempts, a whole number, and timeout, in seconds.",
                id="dayjob.E006",
            )
            for name in wrong
        ]


def imported_task(job: Job) -> dayjob.Task[Any, Any, Any] | None:
    """Return the dayjob task of a job, whose Django task is imported by its module path."""
    try:
        task = import_string(job.task)
    except ImportError:
        return None
    return _dayjob_task(task) if isinstance(task, Task) else None


def _dayjob_task(task: Task) -> dayjob.Task[Any, Any, Any]:
    """Return the dayjob task that runs a Django task. The first use registers it."""
    found = app.tasks.get(task.module_path)
    if found is None:
        options = task.get_backend().options
        attempts = options.get("max_attempts")
        final = Retry.custom(lambda attempt, error: None)  # In Django an exception is final.
        found = app.task(
            name=task.module_path,
            retry=final if attempts is None else Retry(attempts=attempts),
            timeout=options.get("timeout"),
        )(_async_runner(task) if is_coroutine_function(task.func) else _runner(task))
    return found


def _options(result: TaskResult) -> Any:
    task = result.task
    header = Header(result.backend, result.enqueued_at, task.run_after)
    run_at = task.run_after
    if run_at is not None and timezone.is_naive(run_at):
        run_at = timezone.make_aware(run_at)
    return {
        "queue": task.queue_name,
        "priority": NORMAL - PRIORITY_STEP * task.priority,
        "run_at": run_at,
        "headers": {TASK_HEADER: msgspec.json.encode(header).decode()},
    }


# Running.


def _runner(task: Task) -> Any:
    def run(context: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _result(task, context.job)
        task_started.send(DayjobBackend, task_result=result)
        try:
            value = normalize_json(task.func(*_context_of(task, result), *args, **kwargs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if _failed(result, context, error):
                task_finished.send(DayjobBackend, task_result=result)
            raise
        _succeeded(result, value)
        task_finished.send(DayjobBackend, task_result=result)
        return value

    return run


async def _send(signal: Any, result: TaskResult) -> None:
    """Send a signal in the thread of the ORM calls, where receivers find the exception of the task."""
    await sync_to_async(signal.send)(DayjobBackend, task_result=result)


def _async_runner(task: Task) -> Any:
    async def run(context: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _result(task, context.job)
        await _send(task_started, result)
        try:
            value = normalize_json(await task.func(*_context_of(task, result), *args, **kwargs))
        except Exception as error:
            if _failed(result, context, error):
                await _send(task_finished, result)
            raise
        _succeeded(result, value)
        await _send(task_finished, result)
        return value

    return run


def _context_of(task: Task, result: TaskResult) -> list[TaskContext]:
    return [TaskContext(task_result=result)] if task.takes_context else []


def _failed(result: TaskResult, context: Context, error: BaseException) -> bool:
    """Set the failure in the result of this run. Return whether the task has failed permanently."""
    from dayjob.worker.executor import describe

    task = app.find(context.job)
    retry = task.config.retry if task is not None else None
    if isinstance(error, dayjob.Snooze | dayjob.RetryLater | dayjob.JobCancelled) or (
        retry is not None and retry.function is None and context.attempt < context.job.max_attempts
    ):
        return False
    result.errors.append(_error(describe(error)))
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    object.__setattr__(result, "finished_at", timezone.now())
    return True


def _succeeded(result: TaskResult, value: Any) -> None:
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", timezone.now())


# Results.


def _found(job: Job | None, id: str) -> TaskResult:
    if job is None or TASK_HEADER not in job.headers:
        raise TaskResultDoesNotExist(id)
    return _result(import_string(job.task), job)


def _result(task: Task, job: Job) -> TaskResult:
    header = msgspec.json.decode(job.headers[TASK_HEADER], type=Header)
    call = msgspec.json.decode(job.payload, type=Call)
    first = job.errors[0].time if job.errors and job.attempts > 1 else job.claimed_at
    workers = {failure.attempt: failure.worker for failure in job.errors}
    result = TaskResult(
        task=task.using(
            priority=(NORMAL - job.priority) // PRIORITY_STEP, queue_name=job.queue,
            run_after=header.run_after, backend=header.backend,
        ),
        id=job.id, status=_STATUS[job.state], enqueued_at=_time(header.enqueued_at), started_at=_time(first),
        last_attempted_at=_time(job.claimed_at or first), finished_at=_time(job.finished_at), args=call.args,
        kwargs=call.kwargs, backend=header.backend,
        errors=[_error(failure.message) for failure in job.errors],
        worker_ids=[workers.get(number) or job.worker or "" for number in range(1, job.attempts + 1)],
    )  # fmt: skip
    if job.state is JobState.DONE and job.result:
        object.__setattr__(result, "_return_value", msgspec.json.decode(job.result))
    return result


def _time(instant: datetime | None) -> datetime | None:
    """Return the time as Django has it: without ``USE_TZ``, in the site's time zone."""
    if instant is None or settings.USE_TZ or timezone.is_naive(instant):
        return instant
    naive: datetime = timezone.make_naive(instant)
    return naive


def _error(text: str) -> TaskError:
    """Return an error of a job: its first line names the exception, and the traceback follows."""
    line, _, trace = text.partition("\n\n")
    match = _CLASS.match(line)
    name = match[0] if match else ""
    if "." not in name:
        known = next((each for each in (builtins, errors) if hasattr(each, name)), None)
        name = f"{known.__name__}.{name}" if name and known else "dayjob.errors.JobFailed"
    return TaskError(exception_class_path=name, traceback=f"{trace or line}\n")
