"""The series of jobs and of the store, and the HTTP server."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dayjob import App, Broker, BrokerConfig, ConfigError, Context, Retry, Snooze, Worker
from dayjob.broker import Broker as AnyBroker
from dayjob.inspect import Inspector
from dayjob.metrics import Exposition, MetricsServer, measure
from dayjob.metrics import exposition as expositions
from dayjob.metrics import meter as meters
from dayjob.runtime.clock import SYSTEM
from dayjob.testing import ManualClock
from dayjob.worker import worker as workers
from tests.support.bound import BOUND
from tests.support.workers import until, working

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(page: bytes) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))


@pytest.fixture
def app() -> App:
    return App("memory://")


async def test_jobs_are_counted_and_timed_by_outcome(app: App) -> None:
    @app.task(name="good", queue="q")
    async def good() -> None: ...

    @app.task(name="bad", queue="q", retry=Retry.fixed(attempts=2, delay=0))
    async def bad() -> None:
        raise ValueError("no good")

    @app.task(name="later", queue="q")
    async def later() -> None:
        raise Snooze(3600)

    meter = measure(app)
    async with app:
        await good.aenqueue_many([()] * 3)
        await bad.aenqueue()
        await later.aenqueue()
        await Worker(app, ["q"]).run_until_idle()
        series = parsed(await Exposition(Inspector(app.broker), meter.registry).render())
    assert value(series, "dayjob_jobs_enqueued_total", queue="q", task="good") == 3
    assert value(series, "dayjob_jobs_started_total", queue="q", task="good") == 3
    assert value(series, "dayjob_jobs_finished_total", queue="q", task="good", outcome="done") == 3
    assert value(series, "dayjob_jobs_finished_total", queue="q", task="bad", outcome="pending") == 1
    assert value(series, "dayjob_jobs_finished_total", queue="q", task="bad", outcome="dead") == 1
    assert value(series, "dayjob_jobs_finished_total", queue="q", task="later", outcome="scheduled") == 1
    assert value(series, "dayjob_job_run_seconds_count", queue="q", task="bad") == 2
    assert value(series, "dayjob_job_wait_seconds_count", queue="q", task="good") == 3
    assert value(series, "dayjob_jobs", queue="q", state="scheduled") == 1
    assert value(series, "dayjob_jobs", queue="q", state="dead") == 1
    assert value(series, "dayjob_jobs_done_total", queue="q") == 3


async def test_a_deduplicated_enqueue_is_not_counted(app: App) -> None:
    @app.task(name="t", dedup=True)
    async def once() -> None: ...

    meter = measure(app)
    async with app:
        await once.aenqueue()
        await once.aenqueue()
        series = parsed(await Exposition(Inspector(app.broker), meter.registry).render())
    assert value(series, "dayjob_jobs_enqueued_total", queue="default", task="t") == 1


async def test_the_store_has_series(app: App) -> None:
    async with app:
        broker = app.broker
        await broker.enqueue("a")
        await broker.enqueue("b")
        await broker.pause("b")
        series = parsed(await Exposition(Inspector(broker)).render())
    assert value(series, "dayjob_jobs", queue="a", state="pending") == 1
    assert value(series, "dayjob_queue_paused", queue="a") == 0
    assert value(series, "dayjob_queue_paused", queue="b") == 1
    assert value(series, "dayjob_oldest_pending_seconds", queue="a") == pytest.approx(0, abs=60)
    assert value(series, "dayjob_workers") == 0
    assert value(series, "dayjob_workers_wanted", queue="a") == 1
    assert value(series, "dayjob_workers_wanted", queue="b") == 0
    assert value(series, "dayjob_engine_round_trip_seconds") is not None


async def test_hostile_names_do_not_break_the_page(app: App) -> None:
    name = 'x"} evil 1\n\\'

    @app.task(name=name, queue=name)
    async def evil() -> None: ...

    meter = measure(app)
    async with app:
        await evil.aenqueue()
        series = parsed(await Exposition(Inspector(app.broker), meter.registry).render())
    label = meters.label(name)
    assert label.startswith('x"} evil 1\\n\\…')
    assert value(series, "dayjob_jobs_enqueued_total", queue=label, task=label) == 1


async def test_labels_are_bounded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_LABELS", 3)
    monkeypatch.setattr("dayjob.metrics.exposition.MAX_QUEUES", 3)

    @app.task(name="t")
    async def task() -> None: ...

    meter = measure(app)
    async with app:
        for number in range(10):
            await task.using(queue=f"q{number}").aenqueue()
        series = parsed(await Exposition(Inspector(app.broker), meter.registry).render())
    enqueued = {
        labels: count for (name, labels), count in series.items() if name == "dayjob_jobs_enqueued_total"
    }
    assert len(enqueued) == 4
    assert sum(enqueued.values()) == 10
    assert value(series, "dayjob_jobs", queue="other", state="pending") == 7


def test_measuring_an_app_twice_is_an_error(app: App) -> None:
    measure(app)
    with pytest.raises(ConfigError, match="measured already"):
        measure(app)


# Over HTTP.


@contextmanager
def serving(url: str, alive: Callable[[], str | None] = lambda: None) -> Iterator[str]:
    server = MetricsServer(lambda: AnyBroker(url, config=BrokerConfig(duties=False)), 0, alive=alive)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()


def fetch(address: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(address, timeout=BOUND) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_metrics_and_health_are_served(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/jobs.db") as address:
        code, page = fetch(f"{address}/metrics")
        assert code == 200
        assert value(parsed(page), "dayjob_workers") == 0
        code, body = fetch(f"{address}/healthz")
        assert (code, json.loads(body)["ok"]) == (200, True)
        assert fetch(f"{address}/other")[0] == 404


def test_a_head_request_has_the_headers_of_a_get_and_no_body(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/jobs.db") as address:
        request = urllib.request.Request(f"{address}/metrics", method="HEAD")
        with urllib.request.urlopen(request, timeout=BOUND) as answer:
            assert (answer.status, answer.read()) == (200, b"")
            assert int(answer.headers["Content-Length"]) > 100


def test_an_unavailable_store_is_unhealthy(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"no database at all" * 1000)
    with serving(f"sqlite:///{tmp_path}/jobs.db") as address:
        assert fetch(f"{address}/metrics")[0] == 503
        code, body = fetch(f"{address}/healthz")
        assert code == 503
        assert "the store is unavailable" in json.loads(body)["problem"]


def test_a_worker_without_a_heartbeat_is_unhealthy(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/jobs.db", lambda: "no heartbeat was stored for 20 s") as address:
        code, body = fetch(f"{address}/healthz")
        assert code == 503
        assert json.loads(body)["problem"] == "no heartbeat was stored for 20 s"


@pytest.mark.slow
async def test_a_worker_whose_event_loop_is_blocked_is_unhealthy_until_it_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "BLOCKED_LIMIT", 0.1)
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    worker = Worker(app)

    @app.task
    async def blocks(address: str) -> str:
        """Return the problem that the health check reports while this handler blocks the loop."""
        deadline = SYSTEM.elapsed() + BOUND
        while True:
            code, body = fetch(address)
            if code == 503 or SYSTEM.elapsed() > deadline:
                return str(json.loads(body)["problem"])

    with serving(app.url, worker.problem) as address:
        async with worker:
            handle = await blocks.aenqueue(f"{address}/healthz")
            assert (await handle.aresult(timeout=2 * BOUND)).startswith("the event loop has been blocked for")

            async def is_healthy() -> bool:
                return (await asyncio.to_thread(fetch, f"{address}/healthz"))[0] == 200

            await until(is_healthy)


def test_a_port_in_use_is_a_config_error(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/jobs.db") as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=str(port)):
            MetricsServer(lambda: Broker("memory://"), port)


async def test_a_worker_reports_a_missing_heartbeat(app: App) -> None:
    worker = Worker(app, ["q"])
    assert worker.problem() == "the worker is not running"
    started = asyncio.Event()
    app.events.add("worker.started", lambda _: started.set())
    working = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), 10)
    assert worker.problem() is None
    assert worker._registration is not None
    worker._registration.beat_at -= 1000
    assert "no heartbeat was stored" in str(worker.problem())
    worker.stop()
    await working


async def test_a_run_whose_claim_is_lost_is_counted_as_lost() -> None:
    config = BrokerConfig(duties=False)
    app = App("memory://lost-claims", config=config)
    meter = measure(app)
    runs: list[Context] = []

    @app.task(name="long", queue="q")
    async def long(ctx: Context) -> None:
        runs.append(ctx)
        if len(runs) == 1:
            await ctx.cancelled.wait()

    later = ManualClock(ManualClock().time + timedelta(days=3650))
    async with (
        app,
        Broker(app.url, config=config, clock=later) as broker,
        working(app, queues=["q"], lease=1),
    ):
        handle = await long.aenqueue()
        await until(lambda: runs)
        assert await broker.reap() == 1
        await handle.await_end(BOUND)
        await until(lambda: runs[0].cancelled)
    series = parsed(generate_latest(meter.registry))
    labels = {"queue": "q", "task": "long"}
    assert value(series, "dayjob_jobs_started_total", **labels) == 2
    assert value(series, "dayjob_jobs_finished_total", outcome="lost", **labels) == 1
    assert value(series, "dayjob_jobs_finished_total", outcome="done", **labels) == 1


async def test_jobs_that_end_without_a_worker_are_counted() -> None:
    app = App("memory://")
    meter = measure(app)

    @app.task(name="work", queue="q")
    async def work() -> None:
        return

    async with app:
        await work.using(max_attempts=1).aenqueue()
        await work.using(max_attempts=2).aenqueue()
        await app.broker.claim("q", limit=2, worker="gone")
        await work.using(expires=1e-6).aenqueue()
        await app.broker.reclaim_from(["gone"])
        await app.broker.promote()
    series = parsed(generate_latest(meter.registry))
    labels = {"queue": "q", "task": "work"}
    for outcome in ("dead", "pending", "cancelled"):
        assert value(series, "dayjob_jobs_ended_total", outcome=outcome, **labels) == 1


def test_times_added_by_threads_during_a_count_are_not_lost() -> None:
    times = meters.Times()
    added = 20_000
    counted: list[int] = []

    def add() -> None:
        for _ in range(added):
            times.new.append(0.5)

    adding = [threading.Thread(target=add) for _ in range(4)]
    for thread in adding:
        thread.start()
    while any(thread.is_alive() for thread in adding):
        counted.append(times.counted()[0][-1])
    assert counted == sorted(counted)
    counts, seconds = times.counted()
    assert counts == [0] * 5 + [4 * added] * 8
    assert seconds == pytest.approx(2 * added)


def test_a_long_name_is_a_short_label_of_its_own(app: App) -> None:
    meter = measure(app)
    for task in ("x" * 1000, "x" * 1000 + "y", "short", "\x1b[2J\n\u202e", r"\x1b[2J\n\u202e"):
        meter.enqueued("q" * 200, task)
    series = parsed(generate_latest(meter.registry))
    labels = {dict(labels)["task"] for name, labels in series if name == "dayjob_jobs_enqueued_total"}
    assert len(labels) == 5
    assert "short" in labels
    assert all(each.isprintable() for each in labels)
    assert max(map(len, labels)) == meters.LABEL_CHARACTERS
    assert all(len(dict(labels).get("queue", "")) <= meters.LABEL_CHARACTERS for _, labels in series)


def test_names_of_others_do_not_displace_the_declared_tasks(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "MAX_LABELS", 3)

    @app.task(name="own", queue="q")
    async def own() -> None: ...

    meter = measure(app)
    for number in range(9):
        meter.enqueued("q", f"junk-{number}")
    meter.enqueued("q", "own")
    meter.enqueued("elsewhere", "own")
    series = parsed(generate_latest(meter.registry))
    assert value(series, "dayjob_jobs_enqueued_total", queue="q", task="own") == 1
    assert value(series, "dayjob_jobs_enqueued_total", queue="other", task="other") == 7


async def test_a_queue_named_other_is_one_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expositions, "MAX_QUEUES", 2)
    async with Broker("memory://", config=BrokerConfig(duties=False)) as broker:
        for queue in ("other", "other", "other", "a", "a", "b"):
            await broker.enqueue(queue)
        page = (await Exposition(Inspector(broker)).render()).decode()
    pending = [line for line in page.splitlines() if line.startswith("dayjob_jobs{") and '"pending"' in line]
    assert sorted(pending) == [
        'dayjob_jobs{queue="a",state="pending"} 2.0',
        'dayjob_jobs{queue="other",state="pending"} 4.0',
    ]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9100", 200), ("[::1]:9100", 200), ("10.0.0.7", 200), ("localhost:9100", 200),
        ("worker:9100", 200), ("metrics.example.org", 200), ("rebound.evil.com", 403),
        ("127.0.0.1.evil.com:9100", 403), ("", 200),
    ],
)  # fmt: skip
def test_requests_for_other_host_names_are_refused(tmp_path: Path, host: str, status: int) -> None:
    server = MetricsServer(
        lambda: Broker(f"sqlite:///{tmp_path}/jobs.db", config=BrokerConfig(duties=False)), 0,
        hosts=["metrics.example.org"],
    )  # fmt: skip
    server.start()
    try:
        for path in ("/metrics", "/healthz"):
            request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers={"Host": host})
            try:
                with urllib.request.urlopen(request, timeout=BOUND) as answer:
                    found = answer.status
            except urllib.error.HTTPError as error:
                found = error.code
            assert found == status, path
    finally:
        server.stop()


def test_concurrent_first_requests_share_a_broker(tmp_path: Path) -> None:
    made: list[Broker] = []

    def make() -> Broker:
        made.append(Broker(f"sqlite:///{tmp_path}/jobs.db", config=BrokerConfig(duties=False)))
        return made[-1]

    server = MetricsServer(make, 0)
    server.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            codes = list(threads.map(lambda _: server.health()[0], range(4)))
    finally:
        server.stop()
    assert codes == [200] * 4
    assert len(made) == 1
    assert not made[0].is_open
