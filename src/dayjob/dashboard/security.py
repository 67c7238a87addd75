"""The checks of every request: host, identity, origin, CSRF token, permission to act, response headers.

They run before the routes, so that no route can omit them. A request that changes something needs a session's
cookie with that session's CSRF token, or the secret token in a header, which browsers never send by
themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec
from msgspec import Struct
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dayjob.dashboard.clients import Clients, host_name, is_direct, is_loopback
from dayjob.dashboard.credentials import Credentials, User
from dayjob.dashboard.sessions import LIFETIME, Logouts, Session, Sessions
from dayjob.dashboard.state import DashboardState
from dayjob.dashboard.throttle import MAX_WAIT, LoginThrottle

_audit_log = logging.getLogger("dayjob.audit")

CONTEXT = "dayjob.context"
"""The key of the ``RequestContext`` in a request's scope."""

MAX_FORM_BYTES = 64 * 1024

_SAFE_METHODS = ("GET", "HEAD")
_PUBLIC_PATHS = ("/healthz", "/login")
_LOGIN_PATHS = ("/login", "/logout")
"""Allowed in read-only mode: they change no job."""

_READER = "You may read, but not act: log in with a token that may."

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # no-referrer would strip the origin of our own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestContext(Struct, frozen=True):
    """An admitted request: its user, client address, session and form fields."""

    user: str | None
    """None for anonymous requests, which public paths admit."""
    client: str
    session: Session
    csrf: str
    read_only: bool
    """Whether the dashboard, or this user, can only read."""
    fields: dict[str, str] = {}

    @property
    def logged_in(self) -> bool:
        return self.session.logged_in


class Refused(Exception):
    """A request was refused, with this HTTP status."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


def context_of(request: Request) -> RequestContext:
    context: RequestContext = request.scope[CONTEXT]
    return context


def audit(
    action: str, user: str | None, client: str, target: str | None = None, outcome: str | int | None = None
) -> None:
    """Log one action in the audit log. The target is quoted, because names may contain line breaks."""
    level = logging.WARNING if outcome in ("refused", "failed") else logging.INFO
    text = f"{action} by {user or 'anonymous'} from {client}"
    text += f" on {target!r}" if target is not None else ""
    text += f": {outcome}" if outcome is not None else ""
    extra = {"action": action, "user": user, "client": client, "target": target, "outcome": outcome}
    _audit_log.log(level, "%s", text, extra=extra)


_ASCII = "".join(map(chr, range(128)))
"""Stays as it is in a query. Starlette can't redirect a query with other bytes."""


class Guard:
    """Admits requests to the application, or refuses them."""

    def __init__(
        self,
        app: ASGIApp,
        state: DashboardState,
        credentials: Credentials,
        clients: Clients,
        hosts: Sequence[str] | None,
        refusal: Callable[[Request, Refused], Response],
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._sessions = Sessions(credentials)
        self._logouts = Logouts(state.broker, self._sessions.now)
        self._cookie = f"dayjob-{sha256(state.public_url.encode()).hexdigest()[:8]}"
        self._clients = clients
        self._hosts = None if hosts is None else {host.lower().strip("[]") for host in hosts}
        self._read_only = state.read_only
        self._refusal = refusal
        self._throttle = LoginThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "query_string": quote(scope["query_string"], safe=_ASCII).encode()}
        request = Request(scope, receive)
        cookies: list[str] = []
        send = _with_headers(send, cookies)
        try:
            context, fresh = await self._admit(request)
        except Refused as refused:
            await self._refuse(request, refused)(scope, receive, send)
            return
        scope[CONTEXT] = context
        if fresh and _is_page(request):
            cookies.append(self.cookie(request, context.session))
        await self._app(scope, receive, send)

    async def _admit(self, request: Request) -> tuple[RequestContext, bool]:
        self._check_host(request)
        path = route_path(request.scope)
        client = self._clients.address(request)
        found = await self._session(request)
        session = found or self._sessions.new()
        user, by_header = await self._identify(request, session, client)
        is_open = path in _PUBLIC_PATHS or path.startswith("/static/")
        if user is None and not is_open:
            raise Refused(401, "Login required: log in, or send the header Authorization: Bearer TOKEN.")
        read_only = self._read_only or (user is not None and not user.may_act)
        fields: dict[str, str] = {}
        if request.method not in _SAFE_METHODS:
            _check_origin(request)
            fields = await _read_fields(request)
            if not by_header:
                self._check_csrf(request, found, fields)
            if read_only and path not in _LOGIN_PATHS:
                raise Refused(403, "This dashboard is read-only." if self._read_only else _READER)
        csrf = self._sessions.csrf(session)
        name = None if user is None else user.name
        return RequestContext(name, client, session, csrf, read_only, fields), found is None

    # Host.

    def _check_host(self, request: Request) -> None:
        """Refuse foreign host names. DNS rebinding would otherwise give another site's page access."""
        name = host_name(request.headers.get("host", ""))
        if self._hosts is not None and "*" not in self._hosts and name not in self._hosts:
            raise Refused(403, f"The host {name!r} is not allowed: add it with --allow-host, or with hosts=.")
        if not self._credentials.required and not (is_loopback(name) and is_direct(request)):
            raise Refused(
                403,
                "Without a token, only direct requests of clients on this machine are answered, and not "
                "through a proxy or a Unix socket: set a token.",
            )

    # Identity.

    async def _session(self, request: Request) -> Session | None:
        text = request.cookies.get(self._cookie_name(request))
        session = None if text is None else self._sessions.from_text(text)
        if session is not None and session.logged_in and await self._logouts.has(session):
            return None
        return session

    async def _identify(self, request: Request, session: Session, client: str) -> tuple[User | None, bool]:
        """Return the user, and whether a header that browsers do not send automatically proved it."""
        if not self._credentials.required:
            return User("local"), False
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() in ("bearer", "basic"):
            await self._wait_for_turn(client)
            if scheme.lower() == "bearer" and (token := self._credentials.token(given)) is not None:
                return token.user, True
            user = self._credentials.basic_user(given.strip()) if scheme.lower() == "basic" else None
            user = user or await self._credentials.authorized(request)
            if user is not None:
                return user, False
            self._login_failed(client)
            raise Refused(401, "Wrong credentials.")
        if session.logged_in and (token := self._credentials.named(session.token)) is not None:
            return token.user, False
        return await self._credentials.authorized(request), False

    async def log_in(self, request: Request, given: str) -> Session:
        """Return a new session if the token is right."""
        client = context_of(request).client
        await self._wait_for_turn(client)
        token = self._credentials.token(given)
        if token is None:
            self._login_failed(client)
            raise Refused(401, "Wrong token.")
        audit("login", token.user.name, client)
        return self._sessions.new(token.user.name)

    async def log_out(self, request: Request) -> None:
        """End the session, in every process."""
        context = context_of(request)
        audit("logout", context.user, context.client)
        if context.logged_in:
            await self._logouts.add(context.session)

    async def _wait_for_turn(self, client: str) -> None:
        if not await self._throttle.wait(client):
            seconds = f"{MAX_WAIT:.0f}"
            raise Refused(429, f"Too many failed logins. Wait {seconds} seconds.", {"Retry-After": seconds})

    def _login_failed(self, client: str) -> None:
        audit("login", None, client, outcome="refused")
        self._throttle.record_failure(client)

    @property
    def asks_for_token(self) -> bool:
        return self._credentials.has_token

    # CSRF.

    def _check_csrf(self, request: Request, session: Session | None, fields: dict[str, str]) -> None:
        given = fields.pop("csrf", "") or request.headers.get("x-csrf-token", "")
        if session is None or not self._sessions.is_csrf(session, given):
            raise Refused(403, "The CSRF token is missing or its session has expired. Reload the page.")

    # Responses.

    def _cookie_name(self, request: Request) -> str:
        """Return the cookie's name. All ports of a host share cookies, so each dashboard needs its own."""
        _, port = request.scope.get("server") or (None, None)
        return f"{self._cookie}-{port or 0}"

    def cookie(self, request: Request, session: Session | None) -> str:
        """Return the ``Set-Cookie`` header that stores a session, or removes it."""
        value = "" if session is None else self._sessions.to_text(session)
        response = Response()
        response.set_cookie(
            self._cookie_name(request),
            value,
            max_age=LIFETIME if value else 0,
            path=quote(request.scope.get("root_path", "")) or "/",
            secure=self._clients.scheme(request) == "https",
            httponly=True,
            samesite="strict",
        )
        return response.headers["set-cookie"]

    def _refuse(self, request: Request, refused: Refused) -> Response:
        if refused.status == 401:
            if self._credentials.has_token and request.method in _SAFE_METHODS and _is_page(request):
                root, path = request.scope.get("root_path", ""), route_path(request.scope)
                given = request.scope["query_string"].decode("latin-1")
                query = f"?{given}" if given else ""
                target = f"{quote(root)}/login?next={quote(path + query, safe='')}"
                return RedirectResponse(target, status_code=303)
            scheme = "Bearer" if self._credentials.has_token else "Basic"
            refused.headers["WWW-Authenticate"] = f'{scheme} realm="dayjob"'
        return self._refusal(request, refused)


def route_path(scope: Scope) -> str:
    """Return the path below the dashboard's mount point."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/")) or "/"


def _is_page(request: Request) -> bool:
    """Return whether the path is an HTML page, not an endpoint for programs."""
    path = route_path(request.scope)
    endpoints = ("/api/", "/static/", "/healthz", "/metrics", "/events/")
    return not path.startswith(endpoints) and not path.endswith("/events")


def _check_origin(request: Request) -> None:
    """Refuse requests from pages of other sites. Clients other than browsers send neither header."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    foreign = site not in (None, "same-origin", "none")
    if foreign or (origin is not None and _authority(origin) != request.headers.get("host", "").lower()):
        raise Refused(403, "Cross-site request refused. Nothing was changed.")


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


async def _read_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, or of a JSON object of strings."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise Refused(413, f"The form is too large: at most {MAX_FORM_BYTES:,} bytes.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            return msgspec.json.decode(body or b"{}", type=dict[str, str])
        if body and kind != "application/x-www-form-urlencoded":
            raise Refused(415, f"{kind or 'No content type'}: send a form or a JSON object of strings.")
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict"))
    except (msgspec.MsgspecError, ValueError) as error:
        raise Refused(400, f"The form cannot be parsed: {error}") from error


def _with_headers(send: Send, cookies: list[str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = raw = list[Any](message.get("headers", ()))
            headers = MutableHeaders(raw=raw)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
            if "set-cookie" not in headers:
                for cookie in cookies:
                    headers.append("set-cookie", cookie)
        await send(message)

    return sending
