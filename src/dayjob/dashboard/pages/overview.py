"""All queues at a glance, with the last hour's charts of all of them or of one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard import charts
from dayjob.dashboard.desk import PATIENCE, desk_of
from dayjob.dashboard.live import STATES, overview_shape, overview_values, queue_key
from dayjob.dashboard.rendering import asked, page

SHOWN = 100
"""How many queues are on a page."""


async def overview(request: Request) -> Response:
    desk = desk_of(request)
    inspector = await desk.inspector()
    seen = await inspector.overview(patience=PATIENCE)
    queue = asked(request, "queue")
    first = _number(asked(request, "from") or "")
    shown = seen.queues[first : first + SHOWN]
    drawn = await inspector.charts([queue, *(view.name for view in shown)], patience=PATIENCE)
    return page(
        request,
        "overview.html",
        active="overview",
        live="/events/overview",
        live_query={"queue": queue},
        shape=overview_shape(seen),
        seen=seen,
        values=overview_values(seen, desk),
        states=STATES,
        queue=queue,
        queues=[(view, queue_key(view.name), charts.sparkline(drawn[view.name])) for view in shown],
        before=max(first - SHOWN, 0) if first else None,
        after=first + SHOWN if first + SHOWN < len(seen.queues) else None,
        throughput=charts.throughput(drawn[queue]),
        waiting=charts.waiting(drawn[queue]),
        latency=charts.latency(drawn[queue]),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
