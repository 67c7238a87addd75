"""A Starlette application with a worker and event streams, for uvicorn."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dayjob.contrib.starlette import event_stream, job_of, lifespan
from tests.hosts.jobs import of_this_host

jobs = of_this_host()


async def enqueue(_: Request) -> PlainTextResponse:
    return PlainTextResponse((await jobs.quick.aenqueue()).id)


async def follow(request: Request) -> Response:
    return event_stream(request, await job_of(jobs.waits)(id=request.path_params["id"]))


web = Starlette(
    lifespan=lifespan(jobs.app, worker=jobs.worker()),
    routes=[Route("/", enqueue), Route("/events/{id}", follow)],
)
