"""Dead letters: the latest failure first, or by what they failed of."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.desk import PATIENCE, desk_of
from dayjob.dashboard.rendering import asked, page
from dayjob.inspect.inspector import alike

SHOWN = 50
GROUPS_SHOWN = 200


async def dead(request: Request) -> Response:
    inspector = await desk_of(request).inspector()
    queue = asked(request, "queue")
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
    if asked(request, "by") == "error":
        found = await inspector.dead_groups(queue, patience=PATIENCE)
        shown = found.groups[:GROUPS_SHOWN]
        return page(request, "dead_groups.html", found=found, groups=shown, **common)
    after = asked(request, "after")
    latest = await inspector.dead_page(queue, after, SHOWN)
    listed = [(job, alike(job.last_error)) for job in latest.jobs]
    return page(request, "dead.html", jobs=listed, after=latest.after, is_first=after is None, **common)
