"""Spans of enqueues and runs: links, attributes and sampling."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from dayjob import App, ConfigError, Context, DeadLetter, Retry, Snooze, Worker
from dayjob.tracing import trace


class Spans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def of(self, kind: SpanKind) -> Sequence[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def app(spans: Spans) -> App:
    app = App("memory://")
    trace(app, spans.provider)
    return app


async def work(app: App) -> None:
    async with app:
        await Worker(app, ["q"]).run_until_idle()


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


async def test_the_span_of_a_run_links_to_its_producer_span(app: App, spans: Spans) -> None:
    @app.task(name="t", queue="q")
    async def task() -> None: ...

    async with app:
        with spans.tracer.start_as_current_span("request") as request:
            handle = await task.aenqueue()
        await Worker(app, ["q"]).run_until_idle()
    [producer], [consumer] = spans.of(SpanKind.PRODUCER), spans.of(SpanKind.CONSUMER)
    assert (producer.name, consumer.name) == ("enqueue q", "run q")
    assert producer.parent is not None
    assert producer.parent.span_id == request.get_span_context().span_id
    assert consumer.parent is not None
    assert (consumer.parent.trace_id, consumer.parent.span_id) == ids(producer)
    [link] = consumer.links
    assert (link.context.trace_id, link.context.span_id) == ids(producer)
    assert dict(producer.attributes or {}) == {
        "messaging.system": "dayjob",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": "q",
        "dayjob.task": "t",
    }
    attributes = dict(consumer.attributes or {})
    assert attributes["messaging.message.id"] == handle.id
    assert attributes["messaging.operation.type"] == "process"
    assert attributes["dayjob.attempt"] == 1


def test_a_synchronous_enqueue_belongs_to_the_callers_span(app: App, spans: Spans) -> None:
    @app.task(name="t", queue="q")
    def task() -> None: ...

    with app, spans.tracer.start_as_current_span("request") as request:
        task.enqueue()
    [producer] = spans.of(SpanKind.PRODUCER)
    assert producer.parent is not None
    assert producer.parent.span_id == request.get_span_context().span_id
    asyncio.run(work(app))


async def test_a_batch_has_one_producer_span(app: App, spans: Spans) -> None:
    @app.task(name="t", queue="q")
    async def task(number: int) -> None: ...

    async with app:
        await task.aenqueue_many([(number,) for number in range(5)])
        await Worker(app, ["q"]).run_until_idle()
    [producer] = spans.of(SpanKind.PRODUCER)
    assert (producer.attributes or {})["messaging.batch.message_count"] == 5
    consumers = spans.of(SpanKind.CONSUMER)
    assert len(consumers) == 5
    assert {ids(span)[0] for span in consumers} == {ids(producer)[0]}


async def test_every_attempt_has_a_span_and_failures_have_their_error(app: App, spans: Spans) -> None:
    @app.task(name="t", queue="q", retry=Retry.fixed(attempts=2, delay=0))
    async def task() -> None:
        raise ValueError("no good")

    async with app:
        await task.aenqueue()
        await Worker(app, ["q"]).run_until_idle()
    first, second = spans.of(SpanKind.CONSUMER)
    assert [(span.attributes or {})["dayjob.attempt"] for span in (first, second)] == [1, 2]
    assert first.status.status_code is StatusCode.ERROR
    assert (first.attributes or {})["error.type"] == "ValueError"
    assert first.events[0].name == "exception"


@pytest.mark.parametrize(
    ("ending", "outcome", "status"),
    [(Snooze(3600), "snooze", StatusCode.UNSET), (DeadLetter("poison"), "dead", StatusCode.ERROR)],
)
async def test_handler_exceptions_have_an_outcome_and_are_not_errors(
    app: App, spans: Spans, ending: Exception, outcome: str, status: StatusCode
) -> None:
    @app.task(name="t", queue="q")
    async def task() -> None:
        raise ending

    async with app:
        await task.aenqueue()
        await Worker(app, ["q"]).run_until_idle()
    [consumer] = spans.of(SpanKind.CONSUMER)
    assert (consumer.attributes or {})["dayjob.outcome"] == outcome
    assert consumer.status.status_code is status


async def test_follow_ups_belong_to_the_run(app: App, spans: Spans) -> None:
    @app.task(name="second", queue="q")
    async def second() -> None: ...

    @app.task(name="first", queue="q")
    async def first(ctx: Context) -> None:
        ctx.then(second.bind())

    async with app:
        await first.aenqueue()
        await Worker(app, ["q"]).run_until_idle()
    one, two = spans.of(SpanKind.CONSUMER)
    assert two.parent is not None
    assert (two.parent.trace_id, two.parent.span_id) == ids(one)


async def test_concurrent_runs_do_not_mix_their_spans(app: App, spans: Spans) -> None:
    seen: dict[int, int] = {}

    @app.task(name="t", queue="q")
    async def task(number: int) -> None:
        seen[number] = get_current_span().get_span_context().span_id
        if number % 2:
            await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.01)
        assert get_current_span().get_span_context().span_id == seen[number]

    async with app:
        await task.aenqueue_many([(number,) for number in range(50)])
        await Worker(app, ["q"]).run_until_idle()
    assert len(set(seen.values())) == 50
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.of(SpanKind.CONSUMER))


async def test_headers_of_the_user_are_kept(app: App, spans: Spans) -> None:
    @app.task(name="t", queue="q")
    async def task() -> None: ...

    async with app:
        handle = await task.using(headers={"mine": "1"}).aenqueue()
        job = await app.broker.get(handle.id)
    assert job is not None
    assert job.headers["mine"] == "1"
    assert "traceparent" in job.headers


async def test_a_broken_traceparent_starts_a_new_trace(app: App, spans: Spans) -> None:
    @app.task(name="t", queue="q")
    async def task() -> None: ...

    async with app:
        await app.broker.enqueue("q", b"{}", task="t", headers={"traceparent": "nonsense"})
        await Worker(app, ["q"]).run_until_idle()
    [consumer] = spans.of(SpanKind.CONSUMER)
    assert consumer.parent is None
    assert not consumer.links


async def test_runs_of_an_unsampled_trace_create_no_spans(spans: Spans) -> None:
    app = App("memory://")
    unsampled = TracerProvider(sampler=ALWAYS_OFF)
    trace(app, unsampled)
    seen: list[bool] = []

    @app.task(name="second", queue="q")
    async def second() -> None:
        seen.append(get_current_span().get_span_context().trace_flags.sampled)

    @app.task(name="first", queue="q")
    async def first(ctx: Context) -> None:
        seen.append(get_current_span().get_span_context().is_valid)
        ctx.then(second.bind())

    async with app:
        handle = await first.aenqueue()
        job = await app.broker.get(handle.id)
        assert job is not None
        app.tracing = None
        trace(app, spans.provider)
        await Worker(app, ["q"]).run_until_idle()
    assert job.headers["traceparent"][-1] in "02"
    assert seen == [True, False]
    assert spans.of(SpanKind.CONSUMER) == []


def test_an_app_is_traced_once(app: App) -> None:
    with pytest.raises(ConfigError, match="already traced"):
        trace(app)


def test_opentelemetry_and_prometheus_are_imported_only_on_use() -> None:
    script = (
        "import sys, dayjob; from dayjob import App, Worker; App('memory://');"
        "sys.exit(any(name.split('.')[0] in ('opentelemetry', 'prometheus_client') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
