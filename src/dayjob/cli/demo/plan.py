"""The plan of the demo: the jobs to enqueue, and the expected final state of each."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from dayjob.app import App
from dayjob.model.job import HIGH, LOW, JobState, NewJob


class PlannedJob(Struct, frozen=True):
    """A job, and its expected state at the end of the demo, which cancels it first if ``cancel`` is set."""

    job: NewJob
    expected: JobState
    cancel: bool = False


def exports(app: App, workers: int) -> list[PlannedJob]:
    """Return one long job for each worker. The demo cancels them while they run."""
    return [
        PlannedJob(app.tasks["export"].bind(f"archive-{number}.zip").new_job(), JobState.CANCELLED)
        for number in range(1, workers + 1)
    ]


def plan(app: App, jobs: int) -> list[PlannedJob]:
    """Return that many jobs, the urgent ones last."""
    counts = {
        "newsletter": jobs * 28 // 100,
        "resize": jobs * 22 // 100,
        "report": jobs * 5 // 100,
        "flaky": jobs * 14 // 100,
        "poison": jobs * 3 // 100,
        "reminder": jobs * 12 // 100,
        "withdrawn": jobs * 3 // 100,
        "tomorrow": max(jobs // 100, 1),
    }
    counts["urgent"] = jobs - sum(counts.values())
    return [_planned(app, kind, number) for kind, count in counts.items() for number in range(count)]


def _planned(app: App, kind: str, number: int) -> PlannedJob:
    send, remind = app.tasks["send"], app.tasks["remind"]
    match kind:
        case "newsletter":
            return PlannedJob(send.using(priority=LOW).bind("news@example.com").new_job(), JobState.DONE)
        case "urgent":
            return PlannedJob(send.using(priority=HIGH).bind("reset@example.com").new_job(), JobState.DONE)
        case "resize":
            return PlannedJob(app.tasks["resize"].bind("photo.jpg", width=640).new_job(), JobState.DONE)
        case "report":
            return PlannedJob(app.tasks["report"].bind(2026).new_job(), JobState.DONE)
        case "flaky":
            return PlannedJob(app.tasks["fetch"].bind(failures=number % 3).new_job(), JobState.DONE)
        case "poison":
            parse = app.tasks["parse"].bind("no date in line 3", broken=bool(number % 2))
            return PlannedJob(parse.new_job(), JobState.DEAD)
        case "reminder":
            return PlannedJob(remind.using(delay=3.5 + number % 4).bind("dentist").new_job(), JobState.DONE)
        case "withdrawn":
            job = remind.using(delay=timedelta(hours=1)).bind("dentist").new_job()
            return PlannedJob(job, JobState.CANCELLED, cancel=True)
        case _:
            job = remind.using(delay=timedelta(days=1)).bind("dentist").new_job()
            return PlannedJob(job, JobState.SCHEDULED)
