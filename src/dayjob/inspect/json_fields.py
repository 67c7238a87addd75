"""Queues, workers, schedules and the like for JSON: the same stable fields on the command line and the web.

A job's own fields need redaction, so they come from ``Inspector.job_fields``.
"""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from dayjob.inspect.inspector import DeadGroups, Health, Overview, Point
from dayjob.model.durations import to_datetime
from dayjob.model.explanation import Explanation, WorkerInfo
from dayjob.model.recurring import Schedule


def iso(micros: int | None) -> str | None:
    return None if micros is None else to_datetime(micros).isoformat()


def span(seconds: float) -> str:
    """A length of time in two figures, for people."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def when(schedule: Schedule) -> str:
    """The times of a schedule, for people."""
    if schedule.cron is None:
        return f"every {schedule.every:g} s"
    return schedule.cron if schedule.timezone == "UTC" else f"{schedule.cron} {schedule.timezone}"


def queue_fields(overview: Overview) -> list[dict[str, Any]]:
    return [
        {
            "queue": view.name,
            "paused": view.paused,
            **to_builtins(view.stats),
            "done_per_second": round(view.done_per_second, 3),
            "waiting_seconds": view.waiting_seconds,
        }
        for view in overview.queues
    ]


def overview_fields(overview: Overview) -> dict[str, Any]:
    return {
        "at": iso(overview.at_us),
        "total": to_builtins(overview.total),
        "done_per_second": round(overview.done_per_second, 3),
        "workers": overview.workers,
        "slots": overview.slots,
        "running": overview.running,
        "schedules": overview.schedules,
        "round_trip_seconds": overview.round_trip_seconds,
        "queues": queue_fields(overview),
    }


def point_fields(point: Point) -> dict[str, Any]:
    return {
        "until": iso(point.at_us),
        "done": point.done,
        "pending": point.pending,
        "scheduled": point.scheduled,
        "running": point.running,
        "dead": point.dead,
        "wait_seconds": point.wait_seconds,
    }


def worker_fields(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "app": worker.app,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "queues": list(worker.queues),
        "tasks": list(worker.tasks),
        "slots": worker.slots,
        "running": worker.running,
        "started": iso(worker.started_us),
        "seen": iso(worker.seen_us),
    }


def schedule_fields(schedule: Schedule) -> dict[str, Any]:
    return {
        "id": schedule.id,
        "cron": schedule.cron,
        "every": schedule.every,
        "timezone": schedule.timezone,
        "missed": schedule.missed,
        "task": schedule.task,
        "queue": schedule.queue,
        "paused": schedule.paused,
        "declared_by": schedule.app,
        "last_at": iso(schedule.last_us),
        "next_at": None if schedule.paused else iso(schedule.next_us),
        "problem": schedule.problem,
    }


def explanation_fields(why: Explanation) -> dict[str, Any]:
    return {
        "id": why.id,
        "state": None if why.state is None else why.state.value,
        "reasons": [
            {"code": reason.code, "text": reason.text, "data": reason.data} for reason in why.reasons
        ],
    }


def dead_group_fields(found: DeadGroups) -> dict[str, Any]:
    return {
        "groups": [
            {
                "error": group.error,
                "task": group.task,
                "count": group.count,
                "queues": group.queues,
                "latest": group.latest.id,
            }
            for group in found.groups
        ],
        "examined": found.examined,
        "total": found.total,
    }


def health_fields(health: Health) -> dict[str, Any]:
    return to_builtins(health)  # type: ignore[no-any-return]
