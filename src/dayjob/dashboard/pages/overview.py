"""All queues at a glance, with the charts of the last hour for all of them or one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard import charts
from dayjob.dashboard.live_updates import STATES, overview_shape, overview_values, queue_key
from dayjob.dashboard.rendering import page, query_value
from dayjob.dashboard.state import READ_BUDGET, state_of

SHOWN = 100
"""How many queues a page shows."""


async def overview(request: Request) -> Response:
    state = state_of(request)
    inspector = await state.inspector()
    found = await inspector.overview(budget=READ_BUDGET)
    queue = query_value(request, "queue")
    first = _number(query_value(request, "from") or "")
    shown = found.queues[first : first + SHOWN]
    drawn = await inspector.charts([queue, *(view.name for view in shown)], budget=READ_BUDGET)
    return page(
        request,
        "overview.html",
        active="overview",
        live="/events/overview",
        live_query={"queue": queue},
        shape=overview_shape(found),
        values=overview_values(found, state),
        states=STATES,
        queue=queue,
        queues=[(view, queue_key(view.name), charts.sparkline(drawn[view.name])) for view in shown],
        before=max(first - SHOWN, 0) if first else None,
        after=first + SHOWN if first + SHOWN < len(found.queues) else None,
        throughput=charts.throughput(drawn[queue]),
        pending=charts.pending(drawn[queue]),
        latency=charts.latency(drawn[queue]),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
