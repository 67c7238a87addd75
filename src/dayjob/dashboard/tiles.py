"""The tiles of the overview, the most important first. A colour marks only what needs attention."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dayjob.dashboard.rendering import milliseconds, number, rate
from dayjob.inspect import Overview, QueueView
from dayjob.inspect.json_fields import span

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


def tiles(overview: Overview) -> list[Tile]:
    total = overview.total
    return [
        Tile(
            "dead", "Dead", number(total.dead), _names([view for view in overview.queues if view.stats.dead]),
            "bad" if total.dead else "", "/dead",
        ),
        _oldest_wait(overview),
        _stopped(overview),
        Tile(
            "running", "Running", number(total.running), f"{number(overview.slots)} slots", "", "/jobs",
            {"state": "running"},
        ),
        Tile(
            "pending", "Pending", number(total.pending), "due, not started", "", "/jobs", {"state": "pending"}
        ),
        Tile(
            "scheduled", "Scheduled", number(total.scheduled), "later, and retries", "", "/jobs",
            {"state": "scheduled"},
        ),
        Tile(
            "rate", "Completed", f"{rate(overview.done_per_second)}/s", f"{number(total.done)} in total", "",
            "/jobs", {"state": "done"},
        ),
        Tile(
            "workers", "Workers", number(overview.workers),
            f"store in {milliseconds(overview.round_trip_seconds)}",
            "bad" if total.pending and not overview.workers else "", "/workers",
        ),
    ]  # fmt: skip


def _oldest_wait(overview: Overview) -> Tile:
    waiting = [view for view in overview.queues if view.waiting_seconds is not None]
    oldest = max(waiting, key=lambda view: view.waiting_seconds or 0.0, default=None)
    if oldest is None or oldest.waiting_seconds is None:
        return Tile("wait", "Oldest wait", "–", "no job waits")
    seconds = oldest.waiting_seconds
    level: Level = "bad" if seconds >= TOO_LONG_WAIT else "warn" if seconds >= LONG_WAIT else ""
    return Tile(
        "wait", "Oldest wait", span(seconds), oldest.name, level, "/jobs",
        {"state": "pending", "queue": oldest.name},
    )  # fmt: skip


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
