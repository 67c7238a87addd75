"""The backend of Django's tasks, beyond the tests of Django itself, which ``make test-django`` runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from msgspec.structs import replace

from dayjob import App, JobState
from dayjob.contrib.django import DayjobBackend, app
from dayjob.contrib.django.backend import _found
from dayjob.contrib.django.tasks_api import (
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from dayjob.model.job import WAITING
from dayjob.testing import ManualClock, drain, sandbox
from tests.contrib.django import django_tasks as tasks
from tests.contrib.django.tasks import add


@pytest.fixture
def sandboxed() -> Iterator[App]:
    with sandbox(app, ManualClock(timezone.now() + timedelta(seconds=1))):
        yield app


def run(result: Any) -> Any:
    drain(app, raises=False)
    result.refresh()
    return result


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize("state", JobState)
def test_a_job_in_any_state_has_a_result(state: JobState) -> None:
    job = app.job(tasks.double.enqueue(1).id).record()
    assert job is not None
    status = _found(replace(job, state=state), job.id).status
    assert (status == TaskResultStatus.READY) == (state in WAITING)


def test_everything_is_supported() -> None:
    assert DayjobBackend.supports_async_task
    assert DayjobBackend.supports_defer
    assert DayjobBackend.supports_get_result
    assert DayjobBackend.supports_priority


@pytest.mark.parametrize("task", [tasks.double, tasks.adouble], ids=["plain", "coroutine"])
def test_a_result_is_readable_before_and_after_its_run(sandboxed: App, task: Any) -> None:
    result = task.enqueue(21)
    assert (result.status, result.attempts) == (TaskResultStatus.READY, 0)
    assert task.get_result(result.id) == result
    assert (run(result).return_value, result.attempts) == (42, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at


async def test_a_result_is_readable_on_an_event_loop(sandboxed: App) -> None:
    result = await tasks.adouble.aenqueue(21)
    assert await tasks.adouble.aget_result(result.id) == result
    await app.close()


def test_options_of_the_task_are_options_of_the_job(sandboxed: App) -> None:
    later = timezone.now() + timedelta(hours=1)
    task = tasks.double.using(priority=100, queue_name="mail", run_after=later)
    result = task.enqueue(1)
    job = app.job(result.id).record()
    assert job is not None
    assert (job.queue, job.priority, job.state, job.run_at) == ("mail", 100, JobState.SCHEDULED, later)
    assert task.get_result(result.id) == result
    assert drain(app) == 0
    assert drain(app, scheduled=True) == 1
    assert task.get_result(result.id).return_value == 2


def test_higher_priorities_run_first(sandboxed: App) -> None:
    tasks.noted.clear()
    for number, priority in enumerate((-100, 0, 100, 1, -1)):
        tasks.note.using(priority=priority).enqueue(number)
    drain(app)
    assert tasks.noted == [2, 3, 1, 4, 0]


def test_an_exception_is_final_and_a_crash_is_not(sandboxed: App) -> None:
    result = run(tasks.fail.enqueue("no"))
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is ValueError
    assert result.errors[0].traceback.endswith("ValueError: no\n")
    job = app.job(result.id).record()
    assert job is not None
    assert job.max_attempts > 1  # The attempts that a crash of the worker uses up.


def test_max_attempts_retries_exceptions(sandboxed: App) -> None:
    backend = {"BACKEND": "dayjob.contrib.django.DayjobBackend", "OPTIONS": {"max_attempts": 2}}
    finished = []
    task_finished.connect(receiver := lambda task_result, **_: finished.append(task_result.status))
    try:
        with override_settings(TASKS={"default": backend}):
            result = run(tasks.fail_twice.enqueue())
            assert (result.status, result.attempts, finished) == (TaskResultStatus.READY, 1, [])
            drain(app, scheduled=True, raises=False)
            result.refresh()
    finally:
        task_finished.disconnect(receiver)
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert finished == [TaskResultStatus.FAILED]
    assert len(set(result.worker_ids)) == 2


def test_unknown_options_of_the_backend_are_reported() -> None:
    backend = DayjobBackend("default", {"OPTIONS": {"retries": 3, "max_attempts": True, "timeout": 1.5}})
    assert [each.id for each in backend.check()] == ["dayjob.E006", "dayjob.E006"]


def test_signals_are_sent_in_the_order_of_the_states(sandboxed: App) -> None:
    seen: list[tuple[str, str]] = []
    receivers = {
        signal: lambda task_result, name=name, **_: seen.append((name, task_result.status))
        for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("ended", task_finished))
    }
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    try:
        run(tasks.adouble.enqueue(1))
    finally:
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)
    assert seen == [("enqueued", "READY"), ("started", "RUNNING"), ("ended", "SUCCESSFUL")]


def test_a_task_of_a_module_that_the_worker_has_not_imported_is_found(sandboxed: App) -> None:
    result = tasks.double.enqueue(1)
    del app.tasks[tasks.double.module_path]
    assert run(result).return_value == 2


def test_a_job_of_another_task_is_no_result(sandboxed: App) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        tasks.double.get_result(add.enqueue(1, 2).id)


def test_a_rollback_removes_the_task(shared: str) -> None:
    with transaction.atomic(using=shared):
        result = tasks.double.enqueue(1)
        transaction.set_rollback(True, using=shared)
    with pytest.raises(TaskResultDoesNotExist):
        tasks.double.get_result(result.id)


def test_times_are_naive_without_time_zones(sandboxed: App) -> None:
    with override_settings(USE_TZ=False):
        result = tasks.double.enqueue(1)
        assert tasks.double.get_result(result.id) == result
        assert run(result).finished_at.tzinfo is None
