"""Tasks with ``pool="process"`` fail as other tasks do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from dayjob import App, JobState, NewJob
from tests.support.workers import record, run_until_idle
from tests.worker import process_tasks as tasks
from tests.worker.processes.observe import (
    after,
)

pytestmark = pytest.mark.slow


async def test_an_exception_is_stored_with_its_traceback(app: App) -> None:
    job = await after(app, (await tasks.explode.aenqueue()).id)
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
    text = str(job.last_error)
    assert text.startswith("ValueError: the boiler is dry\n")
    assert "process_tasks.py" in text
    assert "dayjob/worker" not in text


async def test_retry_policies_see_the_exception_itself(app: App) -> None:
    one, other = await tasks.give_up.aenqueue(), await tasks.hopeless.aenqueue()
    job = await after(app, one.id)
    assert (job.state, job.attempts) == (JobState.DEAD, 2)
    job = await record(await app.opened(), other.id)
    assert job.state is JobState.SCHEDULED
    assert job.run_us - (job.errors[-1].at_us) == 7_000_000


@pytest.mark.parametrize("task", [tasks.end_by, tasks.end_by_async], ids=["def", "async"])
async def test_handler_exceptions_work_in_a_child(app: App, task: Any) -> None:
    expected = {
        "dead letter": (JobState.DEAD, 1, "no such customer"),
        "later": (JobState.SCHEDULED, 1, "busy"),
        "snooze": (JobState.SCHEDULED, 0, "None"),
        "exit": (JobState.SCHEDULED, 1, "SystemExit: 3"),
        "interrupt": (JobState.SCHEDULED, 1, "KeyboardInterrupt"),
        "generator": (JobState.SCHEDULED, 1, "GeneratorExit"),
        "stop": (JobState.SCHEDULED, 1, "RuntimeError" if task.is_async else "StopIteration"),
    }
    ids = {way: (await task.aenqueue(way)).id for way in expected}
    await run_until_idle(app)
    broker = await app.opened()
    for way, (state, attempts, error) in expected.items():
        job = await record(broker, ids[way])
        assert (way, job.state, job.attempts) == (way, state, attempts)
        assert str(job.last_error).startswith(error)


async def test_a_payload_that_doesnt_fit_is_dead_at_once(app: App) -> None:
    broker = await app.opened()
    enqueued = await broker.enqueue_job(NewJob("default", b'{"size": "tall"}', task=tasks.big.name))
    job = await after(app, enqueued.id)
    assert job.state is JobState.DEAD
    assert str(job.last_error).startswith("BadPayload: the payload doesn't fit")


async def test_a_call_of_other_parameters_is_put_back(app: App) -> None:
    broker = await app.opened()
    for payload, error in ((b"{}", "MissingArgument"), (b'{"size": 1, "colour": 2}', "UnknownParameter")):
        enqueued = await broker.enqueue_job(NewJob("default", payload, task=tasks.big.name))
        job = await after(app, enqueued.id)
        assert job.state in (JobState.SCHEDULED, JobState.PENDING)  # On a slow machine it is due again.
        assert job.attempts == 0
        assert re.match(rf"{error}: try \d+ of 100", str(job.last_error))


async def test_a_task_inside_a_function_is_dead_with_the_remedy(app: App) -> None:
    @app.task(pool="process")
    def inner() -> None: ...

    try:
        job = await after(app, (await inner.aenqueue()).id)
    finally:
        del app.tasks[inner.name]
    assert job.state is JobState.DEAD
    assert "inner' is not registered in a child process" in str(job.last_error)
    assert "define it at the top level" in str(job.last_error)


async def test_a_module_that_cant_be_imported_is_dead_with_the_remedy(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("only_here")
    exec("def lonely() -> None: ...", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    lonely: Callable[[], None] = module.__dict__["lonely"]
    task = app.task(pool="process")(lonely)
    try:
        job = await after(app, (await task.aenqueue()).id)
    finally:
        del app.tasks[task.name]
    assert job.state is JobState.DEAD
    text = str(job.last_error)
    assert text.startswith("the module 'only_here' of task 'only_here.lonely' can't be imported")
    assert "No module named 'only_here'" in text
