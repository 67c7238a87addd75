"""Explanations: the texts and the values of the reasons."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Job, JobState, WorkerInfo
from dayjob.model.durations import SECOND
from dayjob.model.explanation import Explanation, Situation, explain
from dayjob.runtime.ids import new_key

NOW = 1_767_225_600 * SECOND  # 2026-01-01 00:00 UTC
MINUTE = 60 * SECOND
WORKER = WorkerInfo("w-1", "w", "app", "host", 1, "1.0", ("q",), ("t",), 10, 0, NOW, NOW)
FOR_ALL = WorkerInfo("w-2", "w", "app", "host", 1, "1.0", (), (), 10, 0, NOW, NOW)


def job(state: JobState = JobState.PENDING, **fields: Any) -> Job:
    job = Job(
        key=new_key(), queue="q", task="t", payload=b"", headers={}, tenant=None, priority=1000, state=state,
        attempts=0, max_attempts=3, epoch=0, enqueued_us=NOW, run_us=NOW,
    )  # fmt: skip
    return replace(job, **fields)


def why(
    job: Job | None, *, paused: bool = False, ahead: int = 0, workers: tuple[WorkerInfo, ...] = (WORKER,)
) -> Explanation:
    return explain("the-id", job, Situation(NOW, paused, ahead, workers))


def codes(explanation: Explanation) -> list[str]:
    return [reason.code for reason in explanation.reasons]


def test_the_text_of_an_explanation_has_all_reasons() -> None:
    explained = why(job(), paused=True, workers=())
    assert codes(explained) == ["paused", "no_worker_for_queue"]
    assert (
        str(explained)
        == explained.text
        == (
            "Queue 'q' is paused: resume it to run its jobs.\n"
            "No live worker serves queue 'q': start one for it."
        )
    )


def test_an_unknown_job_is_explained() -> None:
    explained = why(None)
    assert (explained.id, explained.state, codes(explained)) == ("the-id", None, ["unknown"])


@pytest.mark.parametrize(
    ("ahead", "text", "data"),
    [
        (1, "It is behind 1 job of queue 'q'.", {"ahead": 1, "more": False, "queue": "q"}),
        (9_999, "It is behind 9,999 jobs of queue 'q'.", {"ahead": 9_999, "more": False, "queue": "q"}),
        (10_000, "It is behind 10,000+ jobs of queue 'q'.", {"ahead": 10_000, "more": True, "queue": "q"}),
    ],
)  # fmt: skip
def test_preceding_jobs_are_counted_up_to_10_000(ahead: int, text: str, data: dict[str, Any]) -> None:
    [reason] = why(job(), ahead=ahead).reasons
    assert (reason.code, reason.text, reason.data) == ("behind", text, data)


def test_a_worker_for_all_queues_serves_any_queue() -> None:
    assert codes(why(job(task=""), workers=(FOR_ALL,))) == ["next"]
    assert codes(why(job(), workers=(FOR_ALL,))) == ["no_worker_for_task"]


def test_a_task_of_workers_that_do_not_serve_the_queue_does_not_count() -> None:
    other = WorkerInfo("w-3", "w", "app", "host", 1, "1.0", ("other",), ("t",), 10, 0, NOW, NOW)
    explained = why(job(), workers=(FOR_ALL, other))
    assert codes(explained) == ["no_worker_for_task"]
    assert explained.reasons[0].data == {"task": "t", "workers": 1}
    [reason] = why(job(), workers=(other,)).reasons
    assert (
        reason.text == "No live worker serves queue 'q': start one for it. 1 live worker serves other queues."
    )


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (-5 * SECOND, "due now"),
        (90 * SECOND, "in 90.0 seconds"),
        (5 * MINUTE, "in 5.0 minutes"),
        (36 * 60 * MINUTE, "in 36.0 hours"),
        (72 * 60 * MINUTE, "in 3.0 days"),
    ],
)
def test_durations_are_shown_in_readable_units(micros: int, shown: str) -> None:
    [reason] = why(job(JobState.SCHEDULED, run_us=NOW + micros)).reasons
    assert reason.code == "scheduled"
    assert f"({shown})" in reason.text


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("ValueError: bad", "ValueError: bad"),
        ("Traceback (most recent call last):\n  File …\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("first\nsecond", "first"),
        ("x" * 1000, f"{'x' * 297}..."),
        (None, "no reason given"),
        (" \n ", "no reason given"),
    ],
)
def test_an_error_is_shown_by_its_message_line(error: str | None, shown: str) -> None:
    dead = job(JobState.DEAD, attempts=3, last_error=error, finished_us=NOW)
    [reason] = why(dead).reasons
    assert reason.text == f"It failed permanently at 2026-01-01 00:00:00 UTC after 3 of 3 attempts: {shown}"
    assert reason.data["error"] == error


def test_a_finished_job_has_no_reasons_of_waiting_jobs() -> None:
    for state in (JobState.DONE, JobState.DEAD, JobState.CANCELLED):
        assert codes(why(job(state), paused=True, ahead=5, workers=())) == [state.value]
