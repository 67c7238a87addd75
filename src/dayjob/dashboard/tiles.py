"""The tiles of the overview, the most important first. A colour marks only values that need attention."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from dayjob.dashboard.rendering import milliseconds, number, rate
from dayjob.inspect import Overview, QueueView
from dayjob.inspect.json_fields import span
from dayjob.model.job import QueueStats

LONG_WAIT, TOO_LONG_WAIT = 60.0, 600.0
"""Seconds from which a wait is a warning, and from which it is a problem."""

Level = Literal["", "warn", "bad"]


class Tile(Struct, frozen=True):
    key: str
    label: str
    value: str
    note: str
    level: Level = ""
    path: str | None = None
    query: dict[str, str] = {}


def tiles(overview: Overview, queue: str | None) -> list[Tile]:
    """Return the tiles of one queue, or of all together. Workers and slots are those of all queues."""
    if queue is not None:
        views = [view for view in overview.queues if view.name == queue]
        rate_of_queue = sum(view.done_per_second for view in views)
        total = views[0].stats if views else QueueStats()
        overview = replace(overview, queues=views, total=total, done_per_second=rate_of_queue)
    of_queue = {} if queue is None else {"queue": queue}
    total = overview.total
    return [
        Tile(
            "dead", "Dead", number(total.dead), _names([view for view in overview.queues if view.stats.dead]),
            "bad" if total.dead else "", "/dead", of_queue,
        ),
        _oldest_wait(overview),
        _stopped(overview),
        Tile(
            "running", "Running", number(total.running), f"{number(overview.slots)} slots", "", "/jobs",
            {"state": "running", **of_queue},
        ),
        Tile(
            "pending", "Pending", number(total.pending), "due, not started", "", "/jobs",
            {"state": "pending", **of_queue},
        ),
        Tile(
            "scheduled", "Scheduled", number(total.scheduled), "later, and retries", "", "/jobs",
            {"state": "scheduled", **of_queue},
        ),
        Tile(
            "rate", "Completed", f"{rate(overview.done_per_second)}/s", f"{number(total.done)} in total", "",
            "/jobs", {"state": "done", **of_queue},
        ),
        Tile(
            "workers", "Workers", number(overview.workers),
            f"round trip {milliseconds(overview.round_trip_seconds)}",
            "bad" if total.pending and not overview.workers else "", "/workers",
        ),
    ]  # fmt: skip


def _oldest_wait(overview: Overview) -> Tile:
    """The longest wait. That of a paused queue is intended: it comes after all others, and has no colour."""
    waiting = [view for view in overview.queues if view.waiting_seconds is not None]
    oldest = max(waiting, key=lambda view: (not view.paused, view.waiting_seconds), default=None)
    if oldest is None or oldest.waiting_seconds is None:
        return Tile("wait", "Oldest wait", "–", "no job waits")
    seconds = oldest.waiting_seconds
    if oldest.paused:
        return Tile("wait", "Oldest wait", span(seconds), f"{oldest.name}, paused", "", *_pending(oldest))
    level: Level = "bad" if seconds >= TOO_LONG_WAIT else "warn" if seconds >= LONG_WAIT else ""
    return Tile("wait", "Oldest wait", span(seconds), oldest.name, level, *_pending(oldest))


def _pending(view: QueueView) -> tuple[str, dict[str, str]]:
    return "/jobs", {"state": "pending", "queue": view.name}


def _stopped(overview: Overview) -> Tile:
    stuck = [view for view in overview.queues if view.stuck]
    paused = [view for view in overview.queues if view.paused]
    notes = [f"{len(paused)} paused"] * bool(paused) + [f"{len(stuck)} without worker"] * bool(stuck)
    level: Level = "bad" if stuck else "warn" if paused else ""
    return Tile(
        "stopped", "Stopped queues", number(len(stuck) + len(paused)), ", ".join(notes) or "all served", level
    )


def _names(queues: list[QueueView]) -> str:
    if not queues:
        return "no failed jobs"
    return queues[0].name if len(queues) == 1 else f"in {len(queues)} queues"
