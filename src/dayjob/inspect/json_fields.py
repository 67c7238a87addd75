"""The stable JSON fields of jobs, queues, workers and schedules, for the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, json, to_builtins

from dayjob.inspect.dead import DeadGroups
from dayjob.inspect.misfits import MisfitReport
from dayjob.inspect.overview import Overview, Point
from dayjob.inspect.redaction import Redaction
from dayjob.inspect.tasks import TaskSample
from dayjob.model.durations import SECOND, to_datetime
from dayjob.model.explanation import Explanation
from dayjob.model.job import Job
from dayjob.model.limits import LimitInfo
from dayjob.model.recurring import Schedule
from dayjob.model.worker_info import WorkerInfo
from dayjob.runtime.clock import SYSTEM

_TIME_NAMES = {"lease_us": "lease_expires_at"}
"""The names of times that are not the field's with ``_at``."""

LISTED_PAYLOAD = 16 * 1024
"""Bytes up to which a list shows the arguments of a job, and not their size."""

LISTED_CHARACTERS, LISTED_VALUE = 160, 60
"""How many characters a list shows of the arguments, and of one of them."""

_LEFT_OUT = ("key", "claim", "dedup_until", "turn")


def iso(micros: int | None) -> str | None:
    return None if micros is None else to_datetime(micros).isoformat()


def span(seconds: float) -> str:
    """Return a duration as text with a unit, rounded."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def instant(micros: int | None) -> str | None:
    return None if micros is None else f"{to_datetime(micros):%Y-%m-%d %H:%M:%S} UTC"


def ago(micros: int | None) -> str | None:
    """Return the time since then, or until then, as text."""
    if micros is None:
        return None
    seconds = (SYSTEM.now() - micros) / SECOND
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def when(schedule: Schedule) -> str:
    """Return the timing of a schedule as text."""
    if schedule.cron is None:
        return f"every {schedule.every:g} s"
    return f"{schedule.cron} {schedule.timezone}"


def job_fields(job: Job, redaction: Redaction) -> dict[str, Any]:
    """Return the public fields of a job by their names, with ISO times.

    Payload and result are decoded. They, the headers and the dedup key are redacted.
    """
    special = {
        "progress": job.progress and {"fraction": job.progress[0], "message": job.progress[1]},
        "errors": [
            {"attempt": each.attempt, "at": iso(each.at_us), "worker": each.worker, "message": each.message}
            for each in job.errors
        ],
        "suspect": job.suspect,
        "dedup_key": redaction.dedup_key(job.dedup_key, job.payload),
        "headers": redaction.headers(job.headers),
        "payload": redaction.content(job.payload),
        "result": None if job.result is None else redaction.content(job.result),
    }
    fields: dict[str, Any] = {"id": job.id}
    for name in Job.__struct_fields__:
        if name.endswith("_us"):
            fields[_TIME_NAMES.get(name, f"{name[:-3]}_at")] = iso(getattr(job, name))
        elif name[0] != "_" and name not in _LEFT_OUT and name not in special:
            fields[name] = getattr(job, name)
    return fields | special


def arguments_line(payload: bytes, redaction: Redaction) -> str:
    """Return the arguments in a payload as one short line, redacted. A large payload is not decoded."""
    if len(payload) > LISTED_PAYLOAD:
        return f"{len(payload):,} bytes"
    content = redaction.content(payload) if payload else {}
    if not isinstance(content, dict):
        return _shortened(_compact(content), LISTED_CHARACTERS)
    pairs = [f"{name}={_shortened(_compact(value), LISTED_VALUE)}" for name, value in content.items()]
    return _shortened(", ".join(pairs), LISTED_CHARACTERS)


def indented(value: Any, most: int) -> str:
    """Return the value as indented JSON. Only its first ``most`` characters are rendered, and a few more.

    Indenting all of it first would multiply the size of a nested value by its depth.
    """
    pieces, size = [], 0
    for piece in _pieces(value, ""):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            break
    return "".join(pieces)


def _pieces(value: Any, margin: str) -> Iterator[str]:
    inner = f"{margin}  "
    if isinstance(value, dict) and value:
        for number, (name, each) in enumerate(value.items()):
            yield f"{',' if number else '{'}\n{inner}{_compact(name)}: "
            yield from _pieces(each, inner)
        yield f"\n{margin}}}"
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield f"{',' if number else '['}\n{inner}"
            yield from _pieces(each, inner)
        yield f"\n{margin}]"
    else:
        yield _compact(value)


def _compact(value: Any) -> str:
    return json.encode(value).decode()


def _shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _named(value: Struct, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


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
        **_named(overview, "workers", "slots", "running", "schedules", "round_trip_seconds"),
        "queues": queue_fields(overview),
    }


def point_fields(point: Point) -> dict[str, Any]:
    counted = _named(point, "done", "pending", "scheduled", "running", "dead", "wait_seconds")
    return {"until": iso(point.at_us), **counted}


def worker_fields(worker: WorkerInfo) -> dict[str, Any]:
    return {
        **_named(worker, "id", "name", "app", "host", "pid", "version"),
        "queues": list(worker.queues),
        "tasks": list(worker.tasks),
        **_named(worker, "slots", "running"),
        "started": iso(worker.started_us),
        "seen": iso(worker.seen_us),
    }


def limit_fields(info: LimitInfo) -> dict[str, Any]:
    """Return a limit: ``at_once`` is its bound on running units, ``running`` the units that run."""
    settings = info.settings
    return {
        "name": info.name,
        "at_once": settings.running,
        "rate": settings.rate,
        "per": settings.per / SECOND,
        "burst": settings.burst,
        "app": settings.app,
        "running": info.running,
        "limited": info.limited,
    }


def task_fields(sample: TaskSample) -> dict[str, Any]:
    """Return the statistics of each task: times are seconds, as ``p50`` and ``p95``."""
    names = ("task", "queues", "jobs", "runs", "failures", "dead")
    return {
        "tasks": [
            {
                **_named(each, *names),
                "wait": to_builtins(each.wait),
                "run": to_builtins(each.run),
                "last_at": iso(each.last_us),
            }
            for each in sample.tasks
        ],
        "jobs": sample.jobs,
        "since": iso(sample.since_us),
        "complete": sample.is_complete,
    }


def schedule_fields(schedule: Schedule) -> dict[str, Any]:
    return {
        **_named(schedule, "id", "cron", "every", "timezone", "missed", "task", "queue", "paused"),
        "declared_by": schedule.app,
        "last_at": iso(schedule.last_us),
        "next_at": None if schedule.paused else iso(schedule.next_us),
        "problem": schedule.problem,
    }


def explanation_fields(why: Explanation) -> dict[str, Any]:
    return {
        "id": why.id,
        "state": None if why.state is None else why.state.value,
        "reasons": [_named(reason, "code", "text", "data") for reason in why.reasons],
    }


def misfit_fields(report: MisfitReport) -> dict[str, Any]:
    """Return the misfits: ``found`` has their numbers by state, ``examples`` the first ids."""
    names = ("task", "problem", "count", "found", "examples")
    return {
        "misfits": [{**_named(group, *names), "queues": sorted(group.queues)} for group in report.groups],
        **_named(report, "count", "examined", "complete"),
    }


def dead_group_fields(found: DeadGroups) -> dict[str, Any]:
    return {
        "groups": [
            {**_named(group, "error", "task", "count", "queues"), "latest": group.latest.id}
            for group in found.groups
        ],
        **_named(found, "examined", "total"),
    }
