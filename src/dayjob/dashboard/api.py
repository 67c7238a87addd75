"""The JSON API, with the fields of the command line's ``--json``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dayjob.dashboard import filters
from dayjob.dashboard.rendering import no_job, query_value
from dayjob.dashboard.state import READ_BUDGET, SAMPLE_BUDGET, state_of
from dayjob.inspect import Inspector, dead_groups, dead_page, task_statistics
from dayjob.inspect.json_fields import (
    dead_group_fields,
    explanation_fields,
    limit_fields,
    overview_fields,
    point_fields,
    queue_fields,
    schedule_fields,
    task_fields,
    worker_fields,
)

MAX_LIMIT = 500
"""The largest ``limit`` of a request."""

Answer = Callable[[Request, Inspector], Awaitable[Any]]


async def _overview(request: Request, inspector: Inspector) -> Any:
    return overview_fields(await inspector.overview())


async def _queues(request: Request, inspector: Inspector) -> Any:
    return queue_fields(await inspector.overview())


async def _chart(request: Request, inspector: Inspector) -> Any:
    queue = query_value(request, "queue")
    return {
        "queue": queue,
        "minutes": [point_fields(point) for point in await inspector.chart(queue, budget=READ_BUDGET)],
    }


async def _jobs(request: Request, inspector: Inspector) -> Any:
    wanted, argument_problem = filters.lenient(request.query_params)
    if argument_problem is not None:
        raise HTTPException(400, argument_problem)
    found = await inspector.page(
        wanted, query_value(request, "after"), _limit(request),
        newest_first=request.query_params.get("oldest_first") != "1", budget=READ_BUDGET,
    )  # fmt: skip
    return {"jobs": [inspector.job_fields(job) for job in found.jobs], "after": found.after}


async def _job(request: Request, inspector: Inspector) -> Any:
    found = await inspector.job(request.path_params["id"])
    if found is None:
        return None
    job, why = found
    return {**inspector.job_fields(job), "explanation": explanation_fields(why)}


async def _dead(request: Request, inspector: Inspector) -> Any:
    queue, after = query_value(request, "queue"), query_value(request, "after")
    found = await dead_page(inspector.broker, queue, after, _limit(request))
    return {"jobs": [inspector.job_fields(job) for job in found.jobs], "after": found.after}


async def _dead_groups(request: Request, inspector: Inspector) -> Any:
    return dead_group_fields(await dead_groups(inspector.broker, query_value(request, "queue")))


async def _tasks(request: Request, inspector: Inspector) -> Any:
    queue = query_value(request, "queue")
    return task_fields(await task_statistics(inspector.broker, queue, budget=SAMPLE_BUDGET))


async def _operations(request: Request, inspector: Inspector) -> Any:
    bulk = state_of(request).bulk
    return [
        {
            "operation": each.id, "name": each.name, "jobs": each.done, "total": each.total,
            "ended": each.ended.is_set(), "problem": each.problem,
        }
        for each in (*bulk.running, *bulk.latest)
    ]  # fmt: skip


async def _limits(request: Request, inspector: Inspector) -> Any:
    return [limit_fields(info) for info in await inspector.broker.limits()]


async def _schedules(request: Request, inspector: Inspector) -> Any:
    return [schedule_fields(schedule) for schedule in await inspector.broker.schedules()]


async def _workers(request: Request, inspector: Inspector) -> Any:
    return [worker_fields(view.info) for view in await inspector.workers()]


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "50")
    return min(max(int(text), 1), MAX_LIMIT) if text.isascii() and text.isdigit() and len(text) < 9 else 50


def routes() -> list[Route]:
    answers: dict[str, Answer] = {
        "overview": _overview,
        "queues": _queues,
        "chart": _chart,
        "jobs": _jobs,
        "jobs/{id}": _job,
        "dead": _dead,
        "dead/groups": _dead_groups,
        "limits": _limits,
        "operations": _operations,
        "schedules": _schedules,
        "tasks": _tasks,
        "workers": _workers,
    }
    return [Route(f"/api/{path}", _endpoint(answer), methods=["GET"]) for path, answer in answers.items()]


def _endpoint(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        found = await answer(request, await state_of(request).inspector())
        if found is None:
            return no_job(request)
        return Response(json.encode(found), media_type="application/json")

    return endpoint
