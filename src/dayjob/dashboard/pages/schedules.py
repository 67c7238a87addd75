"""Schedules, with their next due times."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.live_updates import schedules_shape
from dayjob.dashboard.rendering import page
from dayjob.dashboard.state import state_of
from dayjob.errors import ConfigError
from dayjob.inspect.json_fields import when
from dayjob.model.recurring import Schedule

NEXT_SHOWN = 3
SHOWN = 500


async def schedules(request: Request) -> Response:
    found = await (await state_of(request).inspector()).schedules()
    return page(
        request,
        "schedules.html",
        active="schedules",
        live="/events/schedules",
        live_query={},
        shape=schedules_shape(found),
        schedules=[(schedule, when(schedule), next_fires(schedule)) for schedule in found[:SHOWN]],
        hidden=max(len(found) - SHOWN, 0),
    )


def next_fires(schedule: Schedule) -> list[int]:
    """Return the next due times, if there are any."""
    if schedule.paused or schedule.next_us is None:
        return []
    fires = [schedule.next_us]
    try:
        timing = schedule.timing
        while len(fires) < NEXT_SHOWN and (following := timing.after(fires[-1])) is not None:
            fires.append(following)
    except ConfigError:  # for example, this machine does not know the time zone
        pass
    return fires
