"""The read model: overviews, charts, searches, dead groups, redaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dayjob import (
    Broker,
    BrokerConfig,
    ConfigError,
    Job,
    JobState,
    NewJob,
    QueueStats,
    Recurring,
    Retention,
)
from dayjob.engines.base import DocumentWrite
from dayjob.inspect import (
    Filter,
    Inspector,
    Redaction,
    dead,
    dead_groups,
    dead_page,
    error_line,
    error_pattern,
    json_fields,
    search,
    task_statistics,
    tasks,
)
from dayjob.testing import ManualClock
from tests.support.registered_workers import MEMBER

RETENTION = Retention(done=timedelta(days=1), dead=timedelta(days=1), cancelled=timedelta(days=1))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    async with Broker(url, config=BrokerConfig(duties=False, retention=RETENTION), clock=clock) as opened:
        yield opened


@pytest.fixture
def inspector(broker: Broker) -> Inspector:
    return Inspector(broker)


async def kill(broker: Broker, queue: str, reason: str) -> str:
    enqueued = await broker.enqueue(queue, task="t")
    [job] = await broker.claim(queue)
    await broker.dead_letter(job, reason)
    return enqueued.id


# Overview and charts.


async def test_an_empty_store_has_an_overview(inspector: Inspector) -> None:
    overview = await inspector.overview()
    assert overview.queues == []
    assert overview.total == QueueStats()
    assert (overview.workers, overview.schedules, overview.done_per_second) == (0, 0, 0.0)


async def test_the_overview_has_counts_pauses_latencies_and_workers(
    broker: Broker, inspector: Inspector, clock: ManualClock
) -> None:
    await broker.enqueue("a")
    clock.advance(5)
    await broker.enqueue("a")
    await broker.enqueue("b", delay=60)
    await broker.pause("b")
    await broker.register(MEMBER)
    await broker.schedule(Recurring("s", every=60))
    overview = await inspector.overview()
    a, b = overview.queues
    assert (a.name, a.paused, a.stats.pending, a.waiting_seconds) == ("a", False, 2, 5.0)
    assert (b.name, b.paused, b.stats.scheduled, b.waiting_seconds) == ("b", True, 1, None)
    assert overview.total.pending == 2
    assert (overview.workers, overview.slots, overview.schedules) == (1, 10, 1)


async def test_the_chart_shows_the_jobs_completed_each_minute(
    broker: Broker, inspector: Inspector, clock: ManualClock
) -> None:
    async def complete(jobs: int) -> None:
        await broker.enqueue_many([NewJob("q")] * jobs)
        for job in await broker.claim("q", limit=jobs):
            await broker.ack(job)

    clock.advance(60 - clock.now() // 1_000_000 % 60)
    await broker.enqueue("waiting")
    await broker.sample()
    for jobs in (3, 0, 5):
        await complete(jobs)
        clock.advance(60)
        await broker.sample()
    clock.advance(10)
    await complete(2)
    points = await inspector.chart(minutes=10)
    assert len(points) == 10
    assert [point.done for point in points[-5:]] == [0, 3, 0, 5, 2]
    assert points[-1].pending == 1
    assert [point.done for point in await inspector.chart("waiting", minutes=3)] == [0, 0, 0]
    overview = await inspector.overview()
    assert overview.done_per_second > 0


async def test_the_chart_shows_how_long_the_first_job_waited(
    broker: Broker, inspector: Inspector, clock: ManualClock
) -> None:
    clock.advance(60 - clock.now() // 1_000_000 % 60)
    await broker.sample()
    clock.advance(40)
    await broker.enqueue("slow")
    await broker.enqueue("quick")
    clock.advance(20)
    await broker.sample()
    await broker.ack((await broker.claim("quick"))[0])
    for _ in range(3):  # nothing changes, so no sample is written; the job stays pending
        clock.advance(60)
        await broker.sample()
    await broker.enqueue("quick", delay=5)
    clock.advance(15)
    await broker.promote()

    async def waits(queue: str | None) -> list[float | None]:
        return [point.wait_seconds for point in await inspector.chart(queue, minutes=7)]

    assert await waits("slow") == [None, 0, 20, 80, 140, 200, 215]
    assert await waits("quick") == [None, 0, 20, 0, 0, 0, 10]
    assert await waits(None) == [None, 0, 20, 80, 140, 200, 215]
    assert await waits("unknown") == [None, 0, 0, 0, 0, 0, 0]


async def test_samples_without_due_times_are_read(
    broker: Broker, inspector: Inspector, clock: ManualClock
) -> None:
    clock.advance(60 - clock.now() // 1_000_000 % 60)
    hour = clock.now() // 3_600_000_000
    old = msgspec.msgpack.encode([[clock.now(), {"q": [1, 0, 0, 5, 0, 0]}]])
    await broker._engine.compare_and_set([DocumentWrite("history", f"{hour:012}", None, old)])
    clock.advance(30)
    _, samples = await broker.history()
    assert samples[-1].stats("q").done == 5
    assert samples[-1].wait_seconds("q", clock.now()) is None


async def test_the_history_is_bounded_and_not_written_while_nothing_changes(
    broker: Broker, clock: ManualClock
) -> None:
    clock.advance(3600 - clock.now() // 1_000_000 % 3600)
    for _ in range(30):
        await broker.enqueue("q")
        await broker.sample()
        clock.advance(3600)
    samples = (await broker.history(24))[1]
    assert len(samples) == 24
    for _ in range(10):
        clock.advance(60)
        await broker.sample()
    assert len((await broker.history(24))[1]) <= 26
    assert len((await broker._engine.documents("history"))[1]) <= 26


async def test_health_reports_whether_the_store_answers(broker: Broker, inspector: Inspector) -> None:
    health = await inspector.health()
    assert health.ok
    assert health.round_trip_seconds is not None
    await broker.close()
    health = await inspector.health()
    assert not health.ok
    assert "not open" in str(health.problem)


# Searches.


async def test_pages_return_every_match_once(broker: Broker, inspector: Inspector) -> None:
    made = [
        (await broker.enqueue("ab"[number % 2], task=f"t{number % 3}", tenant=f"n{number % 5}")).id
        for number in range(60)
    ]
    for wanted, expected in (
        (Filter(), made),
        (Filter(queue="a"), made[::2]),
        (Filter(task="t1"), made[1::3]),
        (Filter(tenant="n3"), made[3::5]),
        (Filter(state=JobState.PENDING, text="T2"), made[2::3]),
        (Filter(state=JobState.DEAD), []),
    ):
        found: list[str] = []
        after = None
        while True:
            page = await inspector.page(wanted, after, limit=7)
            assert len(page.jobs) <= 7
            found += [job.id for job in page.jobs]
            if page.found_all:
                break
            after = page.after
        assert found == expected[::-1]
        oldest = await inspector.page(wanted, limit=100, newest_first=False)
        assert [job.id for job in oldest.jobs] == expected


async def test_a_search_stops_at_the_record_limit_and_continues_from_its_cursor(
    broker: Broker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "EXAMINED", 20)
    monkeypatch.setattr(search, "CHUNK", 10)
    needle = (await broker.enqueue("q", headers={"order": "needle"})).id
    await broker.enqueue_many([NewJob("q")] * 50)
    page = await inspector.page(Filter(text="needle"))
    assert (page.jobs, page.examined, page.found_all) == ([], 20, False)
    page = await inspector.page(Filter(text="needle"), page.after)
    page = await inspector.page(Filter(text="needle"), page.after)
    assert [job.id for job in page.jobs] == [needle]


async def test_a_search_for_an_id_reads_one_record(broker: Broker, inspector: Inspector) -> None:
    made = await broker.enqueue("q")
    page = await inspector.page(Filter(text=f" {made.id.upper()} "))
    assert [job.id for job in page.jobs] == [made.id]
    assert page.examined == 1


async def test_dead_jobs_are_grouped_by_task_and_error_pattern(
    broker: Broker, inspector: Inspector, clock: ManualClock
) -> None:
    latest = ""
    for number in range(3):
        clock.advance(1)
        latest = await kill(broker, "ab"[number % 2], f"ValueError: order {number} of 'x{number}' failed")
    await kill(broker, "a", "KeyError: 'y'")
    found = await dead_groups(inspector.broker)
    assert [(group.error, group.count, group.queues) for group in found.groups] == [
        ("ValueError: order … of … failed", 3, ["a", "b"]),
        ("KeyError: …", 1, ["a"]),
    ]
    assert found.groups[0].latest.id == latest
    assert (found.examined, found.total) == (4, 4)
    assert (await dead_groups(inspector.broker, "b")).total == 1


async def test_only_the_latest_dead_jobs_are_grouped(
    broker: Broker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "GROUPED", 2)
    for _ in range(3):
        await kill(broker, "q", "no good")
    found = await dead_groups(inspector.broker)
    assert (found.examined, found.total) == (2, 3)


def test_the_pattern_of_a_traceback_is_its_last_line() -> None:
    trace = "Traceback (most recent call last):\n  File x\nValueError: 1 is bad"
    assert error_pattern(trace) == "ValueError: … is bad"
    assert error_pattern(None) == error_pattern("") == "no reason given"


def test_the_line_of_an_error_is_as_it_was_raised() -> None:
    assert (
        error_line("ValueError: order 7 of 'x7' failed\n\nTraceback") == "ValueError: order 7 of 'x7' failed"
    )
    assert error_line("Traceback (most recent call last):\n  File x\nValueError: 1") == "ValueError: 1"
    assert error_line("x" * 1000) == "x" * 300
    assert error_line(None) == "no reason given"


async def test_workers_come_with_their_running_jobs(broker: Broker, inspector: Inspector) -> None:
    await broker.register(MEMBER)
    await broker.enqueue("q")
    [job] = await broker.claim("q", worker="w-1")
    [view] = await inspector.workers()
    assert view.info.id == "w-1"
    assert [each.id for each in view.jobs] == [job.id]


# Redaction.


async def test_values_of_secret_looking_names_are_redacted(broker: Broker, inspector: Inspector) -> None:
    made = await broker.enqueue(
        "q",
        b'{"user": "ada", "Password": "hunter2", "deep": [{"api-key": "k", "n": 1}]}',
        headers={"Authorization": "Bearer x", "plain": "y"},
    )
    job = await broker.get(made.id)
    assert job is not None
    fields = inspector.job_fields(job)
    assert fields["payload"] == {
        "user": "ada", "Password": "[redacted]", "deep": [{"api-key": "[redacted]", "n": 1}]
    }  # fmt: skip
    assert fields["headers"] == {"Authorization": "[redacted]", "plain": "y"}


def test_the_redaction_pattern_is_configurable() -> None:
    assert Redaction("iban").values({"IBAN": 1, "password": 2}) == {"IBAN": "[redacted]", "password": 2}
    assert Redaction("").values({"password": 2}) == {"password": 2}
    with pytest.raises(ConfigError, match="not a regular expression"):
        Redaction("(")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"[1, 2]", [1, 2]),
        (b"plain text", {"text": "plain text"}),
        (b"", {"text": ""}),
        (b"\xff\xfe" * 200, {"bytes": 400, "hex": "fffe" * 128}),
        (b'{"s": "\xff"}', {"bytes": 10, "hex": "7b2273223a2022ff227d"}),
        (b"[" * 101 + b"]" * 101, {"text": "[" * 101 + "]" * 101}),
    ],
)
def test_payloads_that_are_not_json_are_shown_as_text_or_hex(data: bytes, shown: object) -> None:
    assert Redaction("").content(data) == shown


@pytest.mark.parametrize(
    "value", [[], {}, [[]], {"a": []}, {"a": {"b": [1, {"ü": None}]}, "c": "x\n"}, 5, "t"]
)
def test_indented_json_is_that_of_the_encoder_up_to_its_limit(value: Any) -> None:
    whole = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    assert json_fields.indented(value, 10_000) == whole
    part = json_fields.indented(value, 3)
    assert whole.startswith(part)
    assert len(part) > min(3, len(whole) - 1)


async def test_headers_and_errors_count_as_bytes_of_a_search(
    broker: Broker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FIRST_CHUNK", 1)
    monkeypatch.setattr(search, "EXAMINED_BYTES", 10_000)
    for _ in range(3):
        await broker.enqueue("headers", headers={"h": "v" * 6_000})
    for _ in range(3):
        await kill(broker, "errors", "E" * 6_000)
    assert (await inspector.page(Filter(text="nothing", state=JobState.PENDING))).examined == 2
    assert (await dead_groups(inspector.broker, "errors")).examined == 2
    first = await dead_page(inspector.broker, "errors")
    assert (len(first.jobs), first.found_all) == (2, False)
    second = await dead_page(inspector.broker, "errors", first.after)
    assert (len(second.jobs), second.found_all) == (1, True)


async def test_other_work_of_the_loop_runs_while_errors_are_grouped(
    broker: Broker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "_SLICE", 1)
    for _ in range(3):
        await kill(broker, "q", "no good")
    turns: list[int] = []

    def pattern(error: str | None) -> str:
        asyncio.get_running_loop().call_soon(turns.append, len(turns))
        seen.append(len(turns))
        return ""

    seen: list[int] = []
    monkeypatch.setattr(dead, "error_pattern", pattern)
    await dead_groups(inspector.broker)
    assert seen == [0, 1, 2]


def test_a_bounded_part_of_an_error_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "ValueError: 'x' " + "E" * 16_000
    assert error_pattern(line + "1") == error_pattern(line + "2")
    compared: list[int] = []

    class Pattern:
        def sub(self, new: str, text: str) -> str:
            compared.append(len(text))
            return text

    monkeypatch.setattr(dead, "_VARYING", Pattern())
    error_pattern(line)
    assert compared == [dead.COMPARED_CHARACTERS]


# All jobs of a filter.


async def pages(inspector: Inspector, filter: Filter, most: int = 2**62) -> list[list[str]]:
    return [[job.id for job in page] async for page in inspector.matching(filter, most=most)]


async def test_all_unfinished_jobs_of_a_filter_are_found_in_pages_of_bounded_size(
    broker: Broker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FIRST_CHUNK", 3)
    monkeypatch.setattr(search, "CHUNK", 3)
    running = (await broker.enqueue("q", task="t")).id
    await broker.claim("q")
    jobs = [NewJob("q", task="t" if number % 2 else "other") for number in range(10)]
    pending = [each.id for each in await broker.enqueue_many(jobs)]
    scheduled = (await broker.enqueue("q", task="t", delay=60)).id
    await broker.enqueue("else", task="t")
    found = await pages(inspector, Filter(queue="q"))
    assert [id for page in found for id in page] == [scheduled, *pending, running]
    assert max(map(len, found)) == 3
    assert await inspector.count(Filter(queue="q")) == 12
    wanted = Filter(queue="q", task="t")
    assert [id for page in await pages(inspector, wanted) for id in page] == [
        scheduled, *pending[1::2], running,
    ]  # fmt: skip
    assert await inspector.count(wanted) == 7
    assert await inspector.count(Filter(queue="q", state=JobState.SCHEDULED)) == 1
    assert sum(map(len, await pages(inspector, Filter(queue="q"), most=4))) == 1 + 4 + 1


async def test_large_jobs_are_read_in_small_pages(
    broker: Broker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "EXAMINED_BYTES", 64_000)
    await broker.enqueue_many([NewJob("q", bytes(1000))] * 120)
    found = await pages(inspector, Filter(queue="q"))
    assert sum(map(len, found)) == 120
    assert max(map(len, found[1:])) <= 8


async def test_the_jobs_of_a_filter_are_cancelled_with_progress(
    broker: Broker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FIRST_CHUNK", 4)
    monkeypatch.setattr(search, "CHUNK", 4)
    await broker.enqueue_many([NewJob("q", b'{"user": %d}' % (number % 2), task="t") for number in range(20)])
    await broker.claim("q")
    progress: list[int] = []
    done = await inspector.cancel(Filter(arguments=(("user", "0"),)), on_progress=progress.append)
    assert (done.removed, done.requested) == (9, 1)
    assert progress == sorted(progress)
    assert progress[-1] == 10
    stats = await broker.stats("q")
    assert (stats.pending, stats.running, stats.cancelled) == (10, 1, 9)


async def test_the_dead_jobs_of_a_filter_are_requeued_and_purged_with_progress(
    broker: Broker, inspector: Inspector
) -> None:
    for number in range(4):
        await kill(broker, "q", f"{'OSError' if number % 2 else 'KeyError'}: {number}")
    await broker.enqueue("q", b'"OSError"')
    progress: list[int] = []
    assert await inspector.requeue(Filter(text="oserror"), progress.append) == 2
    assert progress[-1] == 2
    assert await inspector.purge(Filter(text="KeyError: 0")) == 1
    assert await inspector.purge(Filter(state=JobState.PENDING)) == 0
    stats = await broker.stats("q")
    assert (stats.pending, stats.dead) == (3, 1)


async def test_a_filter_selects_by_worker_and_by_schedule(broker: Broker, inspector: Inspector) -> None:
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report", queue="q"))
    await broker.trigger("nightly")
    await broker.enqueue("q", task="t")
    await broker.claim("q", worker="w-1")

    async def found(filter: Filter) -> list[str]:
        return [job.task for job in (await inspector.page(filter)).jobs]

    assert await found(Filter(recurring=False)) == ["t"]
    assert await found(Filter(recurring=True)) == ["report"]
    assert await found(Filter(worker="w-1")) == ["report"]
    assert await found(Filter(worker="w-2")) == []
    assert await inspector.count(Filter(recurring=False)) == 1
    assert await inspector.count(Filter(worker="w-1")) == 1


# Statistics of tasks.


async def run(broker: Broker, clock: ManualClock, task: str, wait: float, seconds: float, ends: str) -> None:
    await broker.enqueue("q", task=task, max_attempts=2)
    clock.advance(wait)
    [job] = await broker.claim("q")
    clock.advance(seconds)
    if ends == "done":
        await broker.ack(job)
    elif ends == "dead":
        await broker.dead_letter(job, "OSError")
    else:
        await broker.nack(job, "OSError", delay=0)
        clock.advance(wait)
        [job] = await broker.claim("q")
        clock.advance(seconds)
        await broker.ack(job)


async def test_statistics_of_tasks_have_runs_failures_and_percentiles(
    broker: Broker, inspector: Inspector, clock: ManualClock
) -> None:
    for number in range(1, 21):
        await run(broker, clock, "steady", number, number / 10, "done")
    await run(broker, clock, "flaky", 1, 2, "retried")
    await run(broker, clock, "flaky", 1, 2, "dead")
    sample = await task_statistics(inspector.broker)
    assert (sample.jobs, sample.is_complete) == (22, True)
    flaky, steady = sample.tasks
    assert (flaky.task, flaky.jobs, flaky.runs, flaky.failures, flaky.dead) == ("flaky", 2, 3, 2, 1)
    assert (steady.task, steady.jobs, steady.runs, steady.failures, steady.dead) == ("steady", 20, 20, 0, 0)
    assert steady.wait is not None
    assert steady.run is not None
    assert (steady.wait.p50, steady.wait.p95) == (10.0, 19.0)
    assert (steady.run.p50, steady.run.p95) == (1.0, 1.9)
    assert flaky.wait is not None
    assert flaky.wait.p95 == 1.0
    assert (await task_statistics(inspector.broker, "other")).tasks == []


async def test_the_sample_is_bounded_and_spans_the_same_time_in_each_state(
    broker: Broker, inspector: Inspector, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SAMPLED", 10)
    for _ in range(3):
        await run(broker, clock, "old", 1, 1, "dead")
    for number in range(20):
        await run(broker, clock, "new", 1, 1, "dead" if number == 15 else "done")
    sample = await task_statistics(inspector.broker)
    assert sample.jobs == 11
    assert not sample.is_complete
    assert [(each.task, each.runs, each.failures) for each in sample.tasks] == [("new", 11, 1)]


async def test_a_task_of_cancelled_jobs_has_no_statistics(broker: Broker, inspector: Inspector) -> None:
    await broker.cancel((await broker.enqueue("q", task="t")).id)
    assert await task_statistics(inspector.broker) == tasks.TaskSample([], 0, None, True)


# Arguments.


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (b"", ""),
        (b"{}", ""),
        (b'{"to": "ada", "n": [1, 2], "none": null}', 'to="ada", n=[1,2], none=null'),
        (b'{"password": "x", "deep": {"token": 1}}', 'password="[redacted]", deep={"token":"[redacted]"}'),
        (b"[1, 2]", "[1,2]"),
        (b"text", 'text="text"'),
        (b"\xff", 'bytes=1, content="[redacted]"'),
        (b'"' + b"x" * 20_000 + b'"', "20,002 bytes"),
        (msgspec.json.encode({"a": "x" * 100, "b": 1}), f'a="{"x" * 58}…, b=1'),
        (msgspec.json.encode({f"n{n}": "x" * 50 for n in range(9)}), None),
    ],
)
def test_arguments_are_one_short_redacted_line(payload: bytes, line: str | None) -> None:
    shown = json_fields.arguments_line(payload, Redaction())
    assert len(shown) <= json_fields.LISTED_CHARACTERS
    assert shown == line if line is not None else shown.endswith("…")


async def test_a_count_within_a_budget_reads_in_short_steps(
    broker: Broker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that looks for a rare task among a million waiting jobs takes longer than any budget."""
    await broker.enqueue_many([NewJob("q", task="t")] * 250)
    asked: list[tuple[str | None, int]] = []
    jobs = broker.jobs

    async def recorded(queue: Any, state: Any, task: str | None, after: Any, limit: int) -> list[Job]:
        asked.append((task, limit))
        return await jobs(queue, state, task, after, limit)

    monkeypatch.setattr(broker, "jobs", recorded)
    wanted = Filter(task="rare")
    assert await inspector.count_within(wanted, search.WAITING, budget=0.0) == (0, False)
    assert asked == [(None, 100), (None, 100)]
    asked.clear()
    assert await inspector.count_within(wanted, search.WAITING, budget=60.0) == (0, True)
    assert {task for task, _ in asked} == {None}
    asked.clear()
    assert await inspector.count(wanted, search.WAITING) == 0
    assert asked == [("rare", 100)] * len(search.WAITING)
