"""The calls that are stored as jobs: which task was enqueued, and with which arguments."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dayjob.app import App
from dayjob.model.job import Job
from dayjob.task import P, Task

_ALL = 1_000_000


class EnqueuedCall(Struct, frozen=True):
    """A stored job with the arguments of its call by parameter name, including defaults.

    The job has the options of the call: ``job.queue``, ``job.run_at``, ``job.headers`` and so on.
    """

    task: str
    arguments: dict[str, Any]
    job: Job


async def aenqueued(source: App | Task[..., Any, Any]) -> list[EnqueuedCall]:
    """Return the stored calls of an app or of one task in the order of their enqueue, in any state."""
    app = source if isinstance(source, App) else source.app
    jobs = await (await app.opened()).jobs(limit=_ALL)
    return [
        EnqueuedCall(job.task, _arguments(app, job), job)
        for job in jobs
        if source is app or app.find(job) is source
    ]


def enqueued(source: App | Task[..., Any, Any]) -> list[EnqueuedCall]:
    """``aenqueued`` for synchronous tests."""
    app = source if isinstance(source, App) else source.app
    return app.call(lambda: aenqueued(source))


async def aassert_enqueued(task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> Job:
    """Return the last job of this call. Raise ``AssertionError`` with the stored calls if there is none."""
    payload = task.encode(args, kwargs)
    wanted = payload if task.arguments is None else task.arguments.by_name(payload)
    calls = await aenqueued(task)
    for call in reversed(calls):
        if wanted == (call.job.payload if task.arguments is None else call.arguments):
            return call.job
    stored = "\n".join(f"  {call.arguments or call.job.payload!r}" for call in calls) or "  none"
    raise AssertionError(f"{task.name} was not enqueued with {wanted!r}. The stored calls are\n{stored}")


def assert_enqueued(task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> Job:
    """``aassert_enqueued`` for synchronous tests."""
    return task.app.call(lambda: aassert_enqueued(task, *args, **kwargs))


def _arguments(app: App, job: Job) -> dict[str, Any]:
    task = app.find(job)
    if task is not None and task.arguments is not None:
        return task.arguments.by_name(job.payload)
    arguments: dict[str, Any] = msgspec.json.decode(job.payload or b"{}") if job.task else {}
    return arguments
