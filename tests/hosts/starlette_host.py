"""A Starlette application with a worker in its lifespan, for uvicorn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.hosts.jobs import of_this_host

jobs = of_this_host()


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with jobs.worker():
        yield


async def enqueue(_: Request) -> PlainTextResponse:
    return PlainTextResponse((await jobs.quick.aenqueue()).id)


web = Starlette(lifespan=lifespan, routes=[Route("/", enqueue)])
