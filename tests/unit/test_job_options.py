"""The options of a new job: each place that passes them on has all of them."""

from __future__ import annotations

from dayjob import NewJob
from dayjob.model.job import Job, JobOptions, JobState, new_job_like
from dayjob.model.recurring import RecurringOptions

CALL = {"queue", "payload", "task"}
OF_ONE_JOB = {
    "run_at", "delay", "expires", "dedup_key", "dedup_until", "dedup", "dedup_max_delay", "dedup_for",
    "dedup_scope", "kv", "id", "reserve_id",
}  # fmt: skip
"""They belong to one enqueue: a rerun, or the next due time of a recurring job, does not have them."""

PASSED_ON = {*NewJob.__struct_fields__} - CALL - OF_ONE_JOB


def test_callers_can_set_every_option_of_a_new_job() -> None:
    assert {*JobOptions.__annotations__} == {*NewJob.__struct_fields__} - CALL - {"reserve_id"}


def test_a_recurring_job_passes_on_every_option_that_is_not_of_one_job() -> None:
    assert {*RecurringOptions.__struct_fields__} == PASSED_ON


def test_a_rerun_keeps_every_option_that_is_not_of_one_job() -> None:
    stored = Job(
        key=bytes(16), queue="q", task="t", payload=b"p", headers={"a": "b"}, tenant="acme", priority=7,
        state=JobState.DEAD, attempts=2, max_attempts=2, epoch=1, enqueued_us=1, run_us=1,
        limits=(("api", 2),), dedup_key="key", expires_us=2,
    )  # fmt: skip
    again, default = new_job_like(stored), NewJob("")
    names = NewJob.__struct_fields__
    assert {name for name in names if getattr(again, name) != getattr(default, name)} == CALL | PASSED_ON
