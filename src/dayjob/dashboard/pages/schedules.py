"""Recurring jobs, with when they fire next."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.desk import desk_of
from dayjob.dashboard.live import schedules_shape
from dayjob.dashboard.rendering import page
from dayjob.errors import ConfigError
from dayjob.inspect.json_fields import when
from dayjob.model.recurring import Schedule

NEXT_SHOWN = 3
SHOWN = 500


async def schedules(request: Request) -> Response:
    found = await (await desk_of(request).inspector()).schedules()
    return page(
        request,
        "schedules.html",
        active="schedules",
        live="/events/schedules",
        live_query={},
        shape=schedules_shape(found),
        schedules=[(schedule, when(schedule), next_fires(schedule)) for schedule in found[:SHOWN]],
        left_out=max(len(found) - SHOWN, 0),
    )


def next_fires(schedule: Schedule) -> list[int]:
    """The next due times, as far as there are any."""
    if schedule.paused or schedule.next_us is None:
        return []
    fires = [schedule.next_us]
    try:
        timing = schedule.timing
        while len(fires) < NEXT_SHOWN and (following := timing.after(fires[-1])) is not None:
            fires.append(following)
    except ConfigError:  # a time zone that is not known on this machine, say
        pass
    return fires
