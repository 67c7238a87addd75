"""OpenTelemetry: a producer span where jobs are enqueued, and a consumer span for each run.

``trace(app)`` once, before the app is used. Names and attributes follow OpenTelemetry's conventions for
messaging; what links the two is a W3C ``traceparent`` header. Whoever enqueues decides whether a trace is
sampled: the runs of one that is not make no spans. Needs ``dayjob[otel]``, and an SDK to
send the spans somewhere.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from functools import lru_cache
from typing import Any

from msgspec.structs import replace
from opentelemetry import trace as otel
from opentelemetry.context import Context as SpanBearing
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    set_span_in_context,
)

from dayjob._version import __version__
from dayjob.app import App
from dayjob.context import Context
from dayjob.errors import ConfigError
from dayjob.model.handler_exceptions import DeadLetter, JobCancelled, RetryLater, Snooze
from dayjob.model.job import Job, NewJob

_SYSTEM = "dayjob"
_OUTCOMES: dict[type[BaseException], str] = {
    DeadLetter: "dead",
    RetryLater: "retry",
    Snooze: "snooze",
    JobCancelled: "cancelled",
}
"""Ways to end a run that are no failures of its code, but for ``DeadLetter``."""

_UNSAMPLED = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f][02468ace])")
"""A ``traceparent`` whose lowest flag, that the trace is sampled, is not set."""


def trace(app: App, provider: TracerProvider | None = None) -> Tracing:
    """Trace the app's jobs from now on, with the given provider or the global one."""
    if app.tracing is not None:
        raise ConfigError(f"{app!r} is traced already")
    tracing = app.tracing = Tracing(otel.get_tracer("dayjob", __version__, provider))
    return tracing


class Tracing:
    """The spans of one app."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def producing(self, jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
        """A producer span around storing the jobs, which carry it in their headers."""
        queues = sorted({job.queue for job in jobs})
        attributes: dict[str, Any] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.type": "send",
            "messaging.operation.name": "enqueue",
            "messaging.destination.name": queues[0] if len(queues) == 1 else ",".join(queues),
        }
        if len(jobs) == 1:
            attributes["dayjob.task"] = jobs[0].task
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        name = f"enqueue {queues[0]}" if len(queues) == 1 else "enqueue"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
            carried = _carried()
            yield [_with(carried, job) for job in jobs]

    def stamped(self, job: NewJob) -> NewJob:
        return _with(_carried(), job)

    def enter(self, job: Job) -> Token[SpanBearing] | None:
        """If the job's trace is not sampled, make it the current one: what the run enqueues follows suit."""
        headers = job.headers
        unsampled = None if "baggage" in headers else _unsampled(headers.get("traceparent", ""))
        return None if unsampled is None else attach(unsampled)

    def leave(self, entered: Token[SpanBearing]) -> None:
        detach(entered)

    async def run(self, context: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """A consumer span around the run, in the trace of whoever enqueued the job."""
        job = context.job
        producer = extract(job.headers)
        link = otel.get_current_span(producer).get_span_context()
        attributes: dict[str, Any] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "run",
            "messaging.destination.name": job.queue,
            "messaging.message.id": job.id,
            "dayjob.task": job.task,
            "dayjob.attempt": context.attempt,
            "dayjob.max_attempts": job.max_attempts,
        }
        with self._tracer.start_as_current_span(
            f"run {job.queue}", producer, SpanKind.CONSUMER, attributes,
            links=[Link(link)] if link.is_valid else [], record_exception=False,
            set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                return await call_next()
            except BaseException as error:
                outcome = _OUTCOMES.get(type(error))
                if outcome is not None:
                    span.set_attribute("dayjob.outcome", outcome)
                if outcome is None or outcome == "dead":
                    span.set_attribute("error.type", type(error).__qualname__)
                    span.record_exception(error)
                    span.set_status(Status(StatusCode.ERROR, str(error)))
                raise


def _carried() -> dict[str, str]:
    """The headers that lead to the current span."""
    headers: dict[str, str] = {}
    inject(headers)
    return headers


def _with(carried: dict[str, str], job: NewJob) -> NewJob:
    if not carried:
        return job
    return replace(job, headers={**(job.headers or {}), **carried})


@lru_cache(1000)
def _unsampled(traceparent: str) -> SpanBearing | None:
    """A context with what stands for the producer's span, if its trace is not sampled."""
    found = _UNSAMPLED.fullmatch(traceparent)
    if found is None:
        return None
    flags = TraceFlags(int(found[3], 16))
    span = NonRecordingSpan(SpanContext(int(found[1], 16), int(found[2], 16), True, flags))
    return set_span_in_context(span, SpanBearing())
