"""The public names of the package."""

from __future__ import annotations

import pytest

import dayjob
from dayjob import errors

ERRORS = [
    "LeaseLost", "InvalidState", "PayloadTooLarge", "KvValueTooLarge", "ConfigError", "UnknownTask",
    "BadPayload", "EngineUnavailable", "EngineFenced", "Closed", "JobFailed", "ResultNotKept",
    "TenantNotFound", "QueueFull",
]  # fmt: skip

NAMES = [
    "Broker", "BrokerConfig", "QueueConfig", "Retention", "Retry", "NewJob", "Enqueued", "Job", "JobState",
    "CancelOutcome", "Waited", "QueueStats", "Settlement", "SettleResult", "HIGH", "NORMAL", "LOW",
    "DayjobError", "App", "Task", "JobHandle", "Worker", "Context", "current", "DeadLetter", "RetryLater",
    "Snooze", "JobCancelled", "Recurring", "WorkerInfo", "Explanation", "EndedJob", "Limit", "LimitInfo",
    "LimitSettings",
]  # fmt: skip

JOB_FIELDS = [
    "id", "queue", "task", "payload", "headers", "tenant", "priority", "state", "attempts", "max_attempts",
    "epoch", "enqueued_at", "run_at", "claimed_at", "lease_expires_at", "finished_at", "expires_at",
    "last_error", "errors", "dedup_key", "dedup_until", "cancel_requested", "worker", "result", "progress",
    "cancel_token", "limits", "limited_by", "turn",
]  # fmt: skip


def test_the_package_exports_the_names_of_the_design() -> None:
    assert sorted(dayjob.__all__) == sorted(NAMES + ERRORS)


@pytest.mark.parametrize("name", NAMES + ERRORS)
def test_every_exported_name_exists(name: str) -> None:
    assert hasattr(dayjob, name)


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_derives_from_the_base(name: str) -> None:
    assert issubclass(getattr(dayjob, name), dayjob.DayjobError)


def test_every_public_error_of_the_package_is_exported() -> None:
    public = {name for name, value in vars(errors).items() if isinstance(value, type) and name[0] != "_"}
    assert public == {"DayjobError", *ERRORS}


@pytest.mark.parametrize("error", [dayjob.PayloadTooLarge, dayjob.KvValueTooLarge])
def test_errors_of_too_large_values_have_the_size_and_the_limit(
    error: type[dayjob.PayloadTooLarge] | type[dayjob.KvValueTooLarge],
) -> None:
    raised = error(2048, 1024)
    assert (raised.size, raised.max) == (2048, 1024)
    assert "2,048" in str(raised)
    assert "1,024" in str(raised)


def test_the_states_of_a_job_are_strings_in_lower_case() -> None:
    assert {state.name: state.value for state in dayjob.JobState} == {
        "SCHEDULED": "scheduled",
        "PENDING": "pending",
        "RUNNING": "running",
        "DONE": "done",
        "DEAD": "dead",
        "CANCELLED": "cancelled",
        "LIMITED": "limited",
    }
    assert isinstance(dayjob.JobState.DONE, str)


def test_the_outcomes_of_a_cancel_are_strings_in_lower_case() -> None:
    assert {outcome.name: outcome.value for outcome in dayjob.CancelOutcome} == {
        "REMOVED": "removed",
        "REQUESTED": "requested",
        "NOT_FOUND": "not_found",
    }
    assert [outcome.acted for outcome in dayjob.CancelOutcome] == [True, True, False]


def test_lower_priorities_run_first() -> None:
    assert (dayjob.HIGH, dayjob.NORMAL, dayjob.LOW) == (100, 1000, 10_000)


@pytest.mark.parametrize("field", JOB_FIELDS)
def test_a_job_has_every_field_of_the_design(field: str) -> None:
    assert hasattr(dayjob.Job, field)
