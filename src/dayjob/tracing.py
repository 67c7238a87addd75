"""OpenTelemetry: a producer span where jobs are enqueued, and a consumer span for each run.

Call ``trace(app)`` once, before the app is used. Names and attributes follow OpenTelemetry's conventions for
messaging. A W3C ``traceparent`` header links the two spans. The producer decides whether a trace is sampled:
runs of an unsampled trace create no spans. Needs ``dayjob[otel]``, and an SDK that exports the spans.
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
from opentelemetry.context import Context as SpanParent
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
"""Exceptions that end a run without a failure, except for ``DeadLetter``."""

_UNSAMPLED = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f][02468ace])")
"""A ``traceparent`` without the lowest flag, which marks a sampled trace."""


def trace(app: App, provider: TracerProvider | None = None) -> Tracing:
    """Trace the app's jobs from now on, with the given provider or the global one."""
    if app.tracing is not None:
        raise ConfigError(f"{app!r} is already traced: call trace(app) once")
    tracing = app.tracing = Tracing(otel.get_tracer("dayjob", __version__, provider))
    return tracing


class Tracing:
    """The spans of one app."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def producing(self, jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
        """Open a producer span around an enqueue. Return the jobs with its headers."""
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
            headers = _span_headers()
            yield [_with(headers, job) for job in jobs]

    def stamped(self, job: NewJob) -> NewJob:
        """Return the job with the headers of the current span. For a job that is stored later."""
        return _with(_span_headers(), job)

    def enter(self, job: Job) -> Token[SpanParent] | None:
        """If the job's trace is not sampled, make it current. The run's jobs are then unsampled too."""
        headers = job.headers
        unsampled = None if "baggage" in headers else _unsampled(headers.get("traceparent", ""))
        return None if unsampled is None else attach(unsampled)

    leave = staticmethod(detach)

    async def run(self, context: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Open a consumer span around the run, in the trace of the producer.

        The span is made current and ended here, because the context managers of OpenTelemetry would take a
        third of the time.
        """
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
        links = [Link(link)] if link.is_valid else []
        span = self._tracer.start_span(f"run {job.queue}", producer, SpanKind.CONSUMER, attributes, links)
        entered = attach(set_span_in_context(span))
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
        finally:
            detach(entered)
            span.end()


def _span_headers() -> dict[str, str]:
    headers: dict[str, str] = {}
    inject(headers)
    return headers


def _with(headers: dict[str, str], job: NewJob) -> NewJob:
    if not headers:
        return job
    return replace(job, headers={**(job.headers or {}), **headers})


@lru_cache(1000)
def _unsampled(traceparent: str) -> SpanParent | None:
    """Return a context with the producer's span, if its trace is not sampled."""
    found = _UNSAMPLED.fullmatch(traceparent)
    if found is None:
        return None
    flags = TraceFlags(int(found[3], 16))
    span = NonRecordingSpan(SpanContext(int(found[1], 16), int(found[2], 16), True, flags))
    return set_span_in_context(span, SpanParent())
