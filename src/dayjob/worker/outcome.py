"""The settlement of a run, from what its handler returned or raised. Stores nothing."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

from dayjob.context import Context
from dayjob.model.codec import encode
from dayjob.model.handler_exceptions import DeadLetter, JobCancelled, RetryLater, Snooze
from dayjob.model.job import Job
from dayjob.model.lifecycle import Transition
from dayjob.model.names import clean_error, shown
from dayjob.model.retry import Retry
from dayjob.model.settlement import Settlement
from dayjob.runtime import entropy
from dayjob.task import Task

UNENCODABLE = b""
"""Marks a result that could not be stored. No JSON text is empty."""

_NULL = b"null"

AnyTask = Task[Any, Any, Any]


def succeeded(task: AnyTask, context: Context, result: Any, max_result: int) -> Settlement:
    """Return the settlement of a handler that returned."""
    return Settlement(
        context.job,
        Transition.ACK,
        result=_NULL if result is None else _encoded(context, result, max_result),
        enqueue=context.follow_ups,
        kv=context.kv,
        retention=task.config.retention,
    )


def _encoded(context: Context, result: Any, max_result: int) -> bytes:
    """Return the result as JSON. A result that can't be stored is logged: the job is done, not retried."""
    try:
        encoded = encode(result)
    except Exception as error:
        context.log.warning("the result %s can't be stored: %s", shown(result), error)
        return UNENCODABLE
    if len(encoded) > max_result:
        context.log.warning(
            "the result has %d bytes and can't be stored: the limit is %d", len(encoded), max_result
        )
        return UNENCODABLE
    return encoded


def failed(task: AnyTask, job: Job, error: BaseException, policy: Retry) -> Settlement:
    """Return the settlement of a handler that raised, by its retry policy."""
    retention = task.config.retention
    if isinstance(error, DeadLetter):
        return Settlement(job, Transition.DEAD_LETTER, error=str(error.reason), retention=retention)
    if isinstance(error, RetryLater):
        return Settlement(
            job, Transition.NACK, error=str(error.reason), delay=error.delay, retention=retention
        )
    if isinstance(error, Snooze):
        return Settlement(job, Transition.SNOOZE, delay=error.delay, retention=retention)
    if isinstance(error, JobCancelled) and job.cancel_requested:
        return Settlement(job, Transition.MARK_CANCELLED, retention=retention)
    text = describe(error)
    try:
        delay = policy.after(job.attempts, error, entropy.fraction())
    except BaseException as fault:
        text = f"{text}\n\nThe retry policy failed too: {describe(fault)}"
        delay = Retry().delay(job.attempts)
    if delay is None:
        return Settlement(job, Transition.DEAD_LETTER, error=text, retention=retention)
    return Settlement(job, Transition.NACK, error=text, delay=delay, retention=retention)


def describe(error: BaseException) -> str:
    """Return the error in one line, then its traceback: bounded, and storable by every engine."""
    first = "".join(traceback.format_exception_only(error)).strip()
    trace = _without_dayjob(error.__traceback__)
    if trace is None and error.__cause__ is None:
        return clean_error(first)
    return clean_error(
        f"{first}\n\n{''.join(traceback.format_exception(type(error), error, trace)).rstrip()}"
    )


def _without_dayjob(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of the handler's own code."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("dayjob."):
        trace = trace.tb_next
    return trace
