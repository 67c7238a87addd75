"""The dashboard as an ASGI application, to serve by itself or to mount under any path."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec

from msgspec import to_builtins
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.dashboard import actions, api, live_updates, login, pages
from dayjob.dashboard.clients import Clients, host_name, is_loopback
from dayjob.dashboard.credentials import Authorize, Credentials
from dayjob.dashboard.feeds import TooManySubscribers
from dayjob.dashboard.rendering import STATIC, problem, refusal
from dayjob.dashboard.security import Guard, Refused, context_of, route_path
from dayjob.dashboard.state import DashboardState, state_of
from dayjob.errors import ConfigError, DayjobError
from dayjob.inspect.redaction import DEFAULT, Redaction

_log = logging.getLogger("dayjob.dashboard")


def dashboard(
    source: App | Broker | str,
    *,
    token: str | Mapping[str, str] | None = None,
    read_token: str | Mapping[str, str] | None = None,
    basic: str | tuple[str, str] | None = None,
    authorize: Authorize | None = None,
    read_only: bool = False,
    redact: str | Redaction = DEFAULT,
    hosts: Sequence[str] | None = None,
    proxies: Sequence[str] = (),
) -> Dashboard:
    """Return the dashboard of an app, of a broker, or of the store at a URL.

    ``token`` is the secret for logins and for ``Authorization: Bearer``, with all permissions; ``read_token``
    is one that may not act. Several are passed as ``{name: secret}``; the audit log has the names.
    ``basic`` is ``"user:password"``. ``authorize`` is an application's own check: a function of the request
    that returns a ``User`` or None. Without any of these, only direct requests of clients on this machine are
    answered.

    ``redact`` is a regular expression for the names of headers and arguments whose values are hidden.
    ``hosts`` are the allowed host names (``"*"``: any). ``proxies`` are the addresses of reverse proxies:
    their ``X-Forwarded-For`` and ``X-Forwarded-Proto`` count.
    """
    if isinstance(hosts, str):
        raise ConfigError(f"hosts={hosts!r} is a string: pass a list of host names")
    credentials = Credentials(token, read_token, basic, authorize)
    if hosts is not None and not credentials.required:
        foreign = [host for host in hosts if not is_loopback(host_name(host) or host)]
        if foreign:
            raise ConfigError(
                f"the host {foreign[0]!r} is allowed without a login: pass token=, basic= or authorize= too"
            )
    redaction = redact if isinstance(redact, Redaction) else Redaction(redact)
    state = DashboardState(source, redaction, read_only=read_only)
    return Dashboard(state, credentials, Clients(proxies), hosts)


class Dashboard:
    """An ASGI application. ``close`` closes a broker that it opened; a server calls it at shutdown."""

    def __init__(
        self, state: DashboardState, credentials: Credentials, clients: Clients, hosts: Sequence[str] | None
    ) -> None:
        self._state = state
        self._routes = Starlette(
            routes=routes(),
            lifespan=self._lifespan,
            exception_handlers={
                DayjobError: _unavailable,
                HTTPException: _refused,
                Refused: _refused_late,
                TooManySubscribers: _too_many,
                Exception: _failed,
            },
        )
        self._guard = Guard(self._routes, state, credentials, clients, hosts, refusal)
        self._routes.state.dashboard = state
        self._routes.state.guard = self._guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard({**scope, "app": self._routes}, receive, send)

    async def open(self) -> None:
        """Open the store now, instead of on the first request."""
        await self._state.broker()

    def stop(self) -> None:
        """End the live streams. A server would wait for them at shutdown."""
        self._state.feeds.stop()

    async def close(self) -> None:
        await self._state.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.close()


def routes() -> list[BaseRoute]:
    made: list[BaseRoute] = [
        Route("/", pages.overview, methods=["GET"]),
        Route("/jobs", pages.jobs, methods=["GET"]),
        Route("/jobs/confirm", pages.confirm, methods=["GET"]),
        Route("/jobs/{id}", pages.job, methods=["GET"]),
        Route("/jobs/{id}/edit", pages.edit_form, methods=["GET"]),
        Route("/dead", pages.dead, methods=["GET"]),
        Route("/tasks", pages.tasks, methods=["GET"]),
        Route("/operations", pages.operations, methods=["GET"]),
        Route("/schedules", pages.schedules, methods=["GET"]),
        Route("/limits", pages.limits, methods=["GET"]),
        Route("/workers", pages.workers, methods=["GET"]),
        Route("/login", login.login_form, methods=["GET"]),
        Route("/login", login.log_in, methods=["POST"]),
        Route("/logout", login.log_out, methods=["POST"]),
        Route("/healthz", healthz, methods=["GET"]),
        *live_updates.routes(),
        *api.routes(),
        *actions.routes(),
        Mount("/static", _Static(directory=STATIC)),
    ]
    if find_spec("prometheus_client") is not None:
        made.append(Route("/metrics", metrics, methods=["GET"]))
    return made


class _Static(StaticFiles):
    """Static files. Their URLs carry a hash of the content, so browsers may cache them permanently."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if response.status_code == 200:
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


async def metrics(request: Request) -> Response:
    """The store's series for Prometheus (extra ``metrics``). Workers expose the series of their runs."""
    from dayjob.metrics.exposition import Exposition

    rendered = await Exposition(await state_of(request).inspector()).render()
    return Response(rendered, headers={"Content-Type": Exposition.content_type})


async def healthz(request: Request) -> Response:
    """Return whether the store answers. The reason is for logged-in users only."""
    try:
        health = await (await state_of(request).inspector()).health()
        ok, fields = health.ok, to_builtins(health)
    except DayjobError as error:
        ok, fields = False, {"ok": False, "problem": str(error)}
    if context_of(request).user is None:
        fields = {"ok": ok}
    return JSONResponse(fields, 200 if ok else 503)


async def _unavailable(request: Request, error: Exception) -> Response:
    _log.warning("%s %s: %s: %s", request.method, route_path(request.scope), type(error).__name__, error)
    return problem(request, 503, f"The store is unavailable: {error}")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "Page not found." if error.status_code == 404 else error.detail
    return problem(request, error.status_code, text, error.headers)


async def _refused_late(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(request, error)


async def _too_many(request: Request, error: Exception) -> Response:
    return problem(request, 503, "Too many live pages are open. Reload later.", {"Retry-After": "30"})


async def _failed(request: Request, error: Exception) -> Response:
    return problem(request, 500, "Internal error. See the log.")
