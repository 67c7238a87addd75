"""Dead letters: the latest failure first, or grouped by error."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.rendering import page, query_value
from dayjob.dashboard.state import READ_BUDGET, state_of
from dayjob.inspect import error_line

SHOWN = 50
GROUPS_SHOWN = 200


async def dead(request: Request) -> Response:
    inspector = await state_of(request).inspector()
    queue = query_value(request, "queue")
    stats = await inspector.broker.all_stats()
    by_queue = {name: each.dead for name, each in stats.items() if each.dead}
    common: dict[str, Any] = {
        "active": "dead",
        "live": "/events/overview",
        "live_query": {},
        "queue": queue,
        "by_queue": dict(list(by_queue.items())[:500]),
        "dead": by_queue.get(queue, 0) if queue is not None else sum(by_queue.values()),
        "total": sum(by_queue.values()),
    }
    if query_value(request, "by") == "error":
        found = await inspector.dead_groups(queue, budget=READ_BUDGET)
        shown = found.groups[:GROUPS_SHOWN]
        return page(request, "dead_groups.html", found=found, groups=shown, **common)
    after = query_value(request, "after")
    latest = await inspector.dead_page(queue, after, SHOWN)
    listed = [(job, error_line(job.last_error)) for job in latest.jobs]
    return page(request, "dead.html", jobs=listed, after=latest.after, is_first=after is None, **common)
