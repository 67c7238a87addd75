"""The call of a handler for a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dayjob.context import Context
from dayjob.task import Task


def handler_call(task: Task[Any, Any, Any], context: Context) -> Callable[[], Any]:
    """Return the task's function with the job's arguments, or with the job for a raw handler."""
    args: Sequence[Any] = (context.job,)
    kwargs: dict[str, Any] = {}
    if task.arguments is not None:
        args, kwargs = task.arguments.decode(context.job.payload)
    if task.wants_context:
        return partial(task.function, context, *args, **kwargs)
    return partial(task.function, *args, **kwargs)
