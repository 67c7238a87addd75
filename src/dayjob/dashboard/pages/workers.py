"""The live workers and their running jobs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.live_updates import queue_key, workers_shape, workers_values
from dayjob.dashboard.rendering import page
from dayjob.dashboard.state import state_of

JOBS_SHOWN = 20
"""How many running jobs of one worker are shown."""


async def workers(request: Request) -> Response:
    views = await (await state_of(request).inspector()).workers()
    return page(
        request,
        "workers.html",
        active="workers",
        live="/events/workers",
        live_query={},
        shape=workers_shape(views),
        views=[(view, queue_key(view.info.id)) for view in views],
        values=workers_values(views),
        jobs_shown=JOBS_SHOWN,
    )
