"""The dashboard as an ASGI application, to serve by itself or to mount under any path."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.dashboard import actions, api, live
from dayjob.dashboard.credentials import Credentials
from dayjob.dashboard.desk import Desk, desk_of
from dayjob.dashboard.events import TooMany
from dayjob.dashboard.pages import dead, job, jobs, login, overview, schedules, workers
from dayjob.dashboard.rendering import STATIC, problem, refusal
from dayjob.dashboard.security import Guard, Refused, route_path, visit_of
from dayjob.dashboard.sessions import Sessions
from dayjob.dashboard.source import Source
from dayjob.errors import ConfigError, DayjobError
from dayjob.inspect.json_fields import health_fields
from dayjob.inspect.redaction import DEFAULT, Redaction

_log = logging.getLogger("dayjob.dashboard")


def dashboard(
    source: App | Broker | str,
    *,
    token: str | None = None,
    basic: str | tuple[str, str] | None = None,
    read_only: bool = False,
    redact: str | Redaction = DEFAULT,
    hosts: Sequence[str] | None = None,
) -> Dashboard:
    """The dashboard of an app, of a broker, or of the store at a URL.

    ``token`` is what people log in with and programs send; ``basic`` is ``"user:password"``. Without
    either it answers on the loopback address only, unless ``hosts`` names the hosts that it answers for
    (``"*"``: any), as when something before it asks who comes. ``redact`` is a regular expression for the
    names of headers and arguments whose values are hidden.
    """
    return Dashboard(source, token=token, basic=basic, read_only=read_only, redact=redact, hosts=hosts)


class Dashboard:
    """An ASGI application. ``close`` lets go of what it opened; served by itself, it does so at the end."""

    def __init__(
        self,
        source: App | Broker | str,
        *,
        token: str | None,
        basic: str | tuple[str, str] | None,
        read_only: bool,
        redact: str | Redaction,
        hosts: Sequence[str] | None,
    ) -> None:
        if isinstance(hosts, str):
            raise ConfigError(f"hosts={hosts!r} is a text: pass a list of host names")
        opened = Source(source)
        credentials = Credentials(token, basic)
        redaction = redact if isinstance(redact, Redaction) else Redaction(redact)
        self._desk = Desk(opened, redaction, read_only=read_only)
        self._routes = Starlette(
            routes=routes(),
            lifespan=self._lifespan,
            exception_handlers={
                DayjobError: _unavailable,
                HTTPException: _refused,
                Refused: _refused_late,
                TooMany: _too_many,
                Exception: _failed,
            },
        )
        self._guard = Guard(
            self._routes,
            credentials,
            Sessions(credentials.key(opened.url)),
            hosts=hosts,
            read_only=read_only,
            refusal=self._refusal,
        )
        self._routes.state.desk = self._desk
        self._routes.state.guard = self._guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard({**scope, "app": self._routes}, receive, send)

    async def open(self) -> None:
        """Open the store now, instead of on the first request."""
        await self._desk.broker()

    def stop(self) -> None:
        """End the live streams, which a server would wait for."""
        self._desk.feeds.stop()

    async def close(self) -> None:
        await self._desk.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.close()

    def _refusal(self, request: Request, refused: Refused) -> Response:
        return refusal(request, refused)


def routes() -> list[BaseRoute]:
    made: list[BaseRoute] = [
        Route("/", overview.overview, methods=["GET"]),
        Route("/jobs", jobs.jobs, methods=["GET"]),
        Route("/jobs/{id}", job.job, methods=["GET"]),
        Route("/dead", dead.dead, methods=["GET"]),
        Route("/schedules", schedules.schedules, methods=["GET"]),
        Route("/workers", workers.workers, methods=["GET"]),
        Route("/login", login.ask, methods=["GET"]),
        Route("/login", login.log_in, methods=["POST"]),
        Route("/logout", login.log_out, methods=["POST"]),
        Route("/healthz", healthz, methods=["GET"]),
        *live.routes(),
        *api.routes(),
        *actions.routes(),
        Mount("/static", _Static(directory=STATIC)),
    ]
    if find_spec("prometheus_client") is not None:
        made.append(Route("/metrics", metrics, methods=["GET"]))
    return made


class _Static(StaticFiles):
    """Their addresses carry a hash of the content, so browsers may keep them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if response.status_code == 200:
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


async def metrics(request: Request) -> Response:
    """For Prometheus, with the extra ``metrics``: the store's series. Those of runs are the workers' own."""
    from dayjob.metrics.exposition import Exposition

    rendered = await Exposition(await desk_of(request).inspector()).render()
    return Response(rendered, headers={"Content-Type": Exposition.content_type})


async def healthz(request: Request) -> Response:
    """For probes: whether the store answers. Who has not logged in is not told why it does not."""
    try:
        health = await (await desk_of(request).inspector()).health()
        ok, fields = health.ok, health_fields(health)
    except DayjobError as error:
        ok, fields = False, {"ok": False, "problem": str(error)}
    if visit_of(request).who is None:
        fields = {"ok": ok}
    return JSONResponse(fields, 200 if ok else 503)


async def _unavailable(request: Request, error: Exception) -> Response:
    _log.warning("%s %s: %s: %s", request.method, route_path(request.scope), type(error).__name__, error)
    return problem(request, 503, f"The store does not answer as it should: {error}")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "There is no such page." if error.status_code == 404 else error.detail
    return problem(request, error.status_code, text, error.headers)


async def _refused_late(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(request, error)


async def _too_many(request: Request, error: Exception) -> Response:
    return problem(request, 503, "Too many watch at once: load the page again later.", {"Retry-After": "30"})


async def _failed(request: Request, error: Exception) -> Response:
    return problem(request, 500, "Something is wrong here. The log says what.")
