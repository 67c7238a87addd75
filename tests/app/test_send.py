"""Enqueue by name: a producer without the code of the task."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from dayjob import HIGH, App, JobState, Retry
from tests.support.app_runs import ajobs, job, jobs, run

YEAR_3000 = datetime(3000, 1, 1, tzinfo=UTC)


@pytest.fixture
def worker(app: App) -> App:
    """The app of the worker, which has the code."""
    worker = App(app.url)

    @worker.task(name="shop.mail", retry=Retry.none())
    def mail(to: str, day: date, *, subject: str = "hello") -> str:
        return f"{subject} {to} {day.isoformat()}"

    return worker


def test_a_task_is_enqueued_by_its_name_and_runs_where_its_code_is(app: App, worker: App) -> None:
    handle = app.send("shop.mail", {"to": "ada", "day": date(2026, 1, 2)})
    assert handle.created
    stored = job(app)
    assert (stored.task, stored.queue, stored.state) == ("shop.mail", "default", JobState.PENDING)
    run(worker)
    assert handle.result(timeout=0) == "hello ada 2026-01-02"


async def test_a_task_is_enqueued_by_its_name_on_an_event_loop(app: App) -> None:
    async with app:
        handle = await app.asend("shop.report")
        assert [(stored.id, stored.payload) for stored in await ajobs(app)] == [(handle.id, b"{}")]


def test_the_attempts_are_those_of_the_task_in_the_worker(app: App, worker: App) -> None:
    runs: list[int] = []

    @worker.task(name="shop.pay", retry=Retry.fixed(attempts=5, delay=0))
    def pay() -> None:
        runs.append(1)
        raise ValueError("declined")

    handles = [app.send("shop.pay"), app.send("shop.pay", max_attempts=2)]
    run(worker)
    assert len(runs) == 5 + 2
    assert [handle.status() for handle in handles] == [JobState.DEAD] * 2


def test_the_options_are_those_of_using(app: App) -> None:
    options: Any = {"queue": "email", "priority": HIGH, "run_at": YEAR_3000, "tenant": "acme"}
    app.send("shop.mail", {"to": "ada"}, **options, max_attempts=7, headers={"trace": "1"})
    stored = job(app)
    assert {name: getattr(stored, name) for name in options} == options
    assert (stored.max_attempts, stored.headers) == (7, {"trace": "1"})
    with pytest.raises(TypeError, match=r"prio=... is no option .*the options are priority, run_at"):
        app.send("shop.mail", prio=1)  # type: ignore[call-arg]


def test_a_dedup_key_is_that_of_the_task(app: App, worker: App) -> None:
    assert app.send("shop.mail", {"to": "ada"}, dedup_key="k").created
    assert not worker.tasks["shop.mail"].using(dedup_key="k").enqueue("ada", date(2026, 1, 2)).created


def test_a_task_of_the_app_itself_has_its_options_and_is_checked(app: App) -> None:
    @app.task(name="own", queue="email", dedup=True, max_attempts=9)
    def own(to: str) -> int:
        return len(to)

    assert app.send("own", {"to": "ada"}).created
    assert not app.send("own", {"to": "ada"}).created
    assert (job(app).queue, job(app).max_attempts) == ("email", 9)
    with pytest.raises(TypeError, match="own: missing a required argument: 'to'"):
        app.send("own")


def test_arguments_that_can_not_be_stored_are_refused(memory_app: App) -> None:
    wrong: list[tuple[Any, str]] = [
        ({"to": object()}, "shop.mail: argument `to` can't be encoded"),
        (("ada",), "shop.mail: .* pass a mapping of arguments by parameter name"),
        ("ada", "pass a mapping of arguments"),
    ]
    for args, text in wrong:
        with pytest.raises(TypeError, match=text):
            memory_app.send("shop.mail", args)
    with pytest.raises(ValueError, match="task name is empty"):
        memory_app.send("")
    assert jobs(memory_app) == []


def test_arguments_that_are_not_in_a_mapping_are_refused_with_the_form_to_use(memory_app: App) -> None:
    with pytest.raises(
        TypeError, match=r"mail: the arguments are a list: pass a mapping of arguments by parameter"
    ):
        memory_app.send("mail", ["ada"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"mail: to=... is no option .*send\('mail', \{'to': ...\}\)"):
        memory_app.send("mail", to="ada")  # type: ignore[call-arg]
