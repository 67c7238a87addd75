"""The gate that every request passes: host, identity, origin, CSRF token, read-only mode, headers.

It stands before the routes, so that no route can forget it. A request that changes something gets through
only with a session's cookie and that session's CSRF token, or with the secret token in a header, which a
browser never sends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec
from msgspec import Struct
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dayjob.dashboard.audit import audit
from dayjob.dashboard.credentials import Credentials, Guesses
from dayjob.dashboard.sessions import LIFETIME, Session, Sessions

VISIT = "dayjob.visit"
"""Where a request's scope has its ``Visit``."""

MOST_BYTES = 64 * 1024
"""How large a form may be."""

_SAFE = ("GET", "HEAD")
_OPEN = ("/healthz", "/login")
_FOR_ALL = ("/login", "/logout")
"""What is no change to any job, and so allowed in read-only mode."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser's own forms would have no origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Visit(Struct, frozen=True):
    """A request that was let in: from whom, and what a page has to know."""

    who: str | None
    """None on pages that are open to all."""
    client: str
    session: Session
    csrf: str
    read_only: bool
    fields: dict[str, str] = {}

    @property
    def logged_in(self) -> bool:
        return self.session.known


class Refused(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


def visit_of(request: Request) -> Visit:
    visit: Visit = request.scope[VISIT]
    return visit


class Guard:
    """Lets requests in, or answers them."""

    def __init__(
        self,
        app: ASGIApp,
        credentials: Credentials,
        sessions: Sessions,
        *,
        hosts: Sequence[str] | None,
        read_only: bool,
        refusal: Callable[[Request, Refused], Response],
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._sessions = sessions
        self._hosts = None if hosts is None else {host.lower().strip("[]") for host in hosts}
        self._read_only = read_only
        self._refusal = refusal
        self._guesses = Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        cookies: list[str] = []
        send = _with_headers(send, cookies)
        try:
            visit, fresh = await self._admit(request)
        except Refused as refused:
            await self._answer(request, refused)(scope, receive, send)
            return
        scope[VISIT] = visit
        if fresh and _is_page(request):
            cookies.append(self.cookie(request, visit.session))
        await self._app(scope, receive, send)

    async def _admit(self, request: Request) -> tuple[Visit, bool]:
        self._check_host(request)
        path = route_path(request.scope)
        client = request.client.host if request.client else "local"
        found = self._session(request)
        session = found or self._sessions.new()
        who, by_header = await self._identify(request, session, client)
        is_open = path in _OPEN or path.startswith("/static/")
        if who is None and not is_open:
            raise Refused(401, "Log in first, or send the token: Authorization: Bearer TOKEN.")
        fields: dict[str, str] = {}
        if request.method not in _SAFE:
            _check_origin(request)
            fields = await _read_fields(request)
            if not by_header:
                self._check_csrf(request, found, fields)
            if self._read_only and path not in _FOR_ALL:
                raise Refused(403, "This dashboard is read-only.")
        visit = Visit(who, client, session, self._sessions.csrf(session), self._read_only, fields)
        return visit, found is None

    # Host.

    def _check_host(self, request: Request) -> None:
        """Against DNS rebinding: a foreign name that leads here must not make a browser our client."""
        name = _host_name(request.headers.get("host", ""))
        if self._hosts is not None:
            if "*" not in self._hosts and name not in self._hosts:
                raise Refused(
                    403,
                    f"This dashboard does not answer for the host {name!r}: allow it with --allow-host, "
                    "or with hosts= where it is made.",
                )
        elif not self._credentials.required:
            client = request.client.host if request.client else "localhost"
            if not (is_loopback(name) and is_loopback(client)):
                raise Refused(
                    403,
                    "Without a token, this dashboard answers on the loopback address only: set a token, or, "
                    "if something before it asks who comes, name the hosts that it answers for (hosts=).",
                )

    # Identity.

    def _session(self, request: Request) -> Session | None:
        text = request.cookies.get(self._sessions.cookie)
        return None if text is None else self._sessions.from_text(text)

    async def _identify(self, request: Request, session: Session, client: str) -> tuple[str | None, bool]:
        """Who it is; and whether a header said so that no browser sends by itself."""
        if not self._credentials.required:
            return "local", False
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() in ("bearer", "basic"):
            if self._guesses.too_many(client):
                raise Refused(429, "Too many wrong guesses: wait a minute.", {"Retry-After": "60"})
            if scheme.lower() == "bearer" and self._credentials.is_token(given.strip()):
                return "bearer", True
            if scheme.lower() == "basic" and (user := self._credentials.user(given.strip())) is not None:
                return f"user {user}", False
            await self._wrong(client)
            raise Refused(401, "The credentials are wrong.")
        return ("token" if session.known else None), False

    async def log_in(self, request: Request, given: str) -> Session:
        """A session for who knows the token."""
        client = visit_of(request).client
        if self._guesses.too_many(client):
            raise Refused(429, "Too many wrong guesses: wait a minute.", {"Retry-After": "60"})
        if not self._credentials.is_token(given.strip()):
            await self._wrong(client)
            raise Refused(401, "This is not the token.")
        audit("login", "token", client)
        return self._sessions.new(known=True)

    async def _wrong(self, client: str) -> None:
        audit("login", None, client, outcome="refused")
        await self._guesses.wrong(client)

    @property
    def asks_for_token(self) -> bool:
        return self._credentials.has_token

    # Forgery.

    def _check_csrf(self, request: Request, session: Session | None, fields: dict[str, str]) -> None:
        given = fields.pop("csrf", "") or request.headers.get("x-csrf-token", "")
        if session is None or not self._sessions.is_csrf(session, given):
            raise Refused(
                403, "The form is not one of this dashboard, or its session is over: load the page again."
            )

    # Answers.

    def cookie(self, request: Request, session: Session | None) -> str:
        """The ``Set-Cookie`` header that stores a session, or removes it."""
        value = "" if session is None else self._sessions.to_text(session)
        response = Response()
        response.set_cookie(
            self._sessions.cookie,
            value,
            max_age=LIFETIME if value else 0,
            path=quote(request.scope.get("root_path", "")) or "/",
            secure=request.scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )
        return response.headers["set-cookie"]

    def _answer(self, request: Request, refused: Refused) -> Response:
        if refused.status == 401:
            if self._credentials.has_token and request.method in _SAFE and _is_page(request):
                root, path = request.scope.get("root_path", ""), route_path(request.scope)
                given = request.scope["query_string"].decode("latin-1")
                query = f"?{given}" if given else ""
                target = f"{quote(root)}/login?next={quote(path + query, safe='')}"
                return RedirectResponse(target, status_code=303)
            scheme = "Bearer" if self._credentials.has_token else "Basic"
            refused.headers["WWW-Authenticate"] = f'{scheme} realm="dayjob"'
        return self._refusal(request, refused)


def route_path(scope: Scope) -> str:
    """The path below wherever the dashboard is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/")) or "/"


def is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name in ("localhost", "") or name.endswith(".localhost")


def _host_name(host: str) -> str:
    """Of a Host header: without the port, and without the brackets of IPv6."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return "?"


def _is_page(request: Request) -> bool:
    """Whether a person looks at it, rather than a program."""
    path = route_path(request.scope)
    for_programs = ("/api/", "/static/", "/healthz", "/metrics", "/events/")
    return not path.startswith(for_programs) and not path.endswith("/events")


def _check_origin(request: Request) -> None:
    """Refuse what another site's page sends. Programs that are no browsers send neither header."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    foreign = site not in (None, "same-origin", "none")
    if foreign or (origin is not None and _place(origin) != request.headers.get("host", "").lower()):
        raise Refused(403, "A page of another site sent this, so nothing was done.")


def _place(origin: str) -> str | None:
    """The host and port of an origin."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


async def _read_fields(request: Request) -> dict[str, str]:
    """The fields of a form, or of a JSON object of texts."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Refused(413, f"The form is too large: at most {MOST_BYTES:,} bytes.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            return msgspec.json.decode(body or b"{}", type=dict[str, str])
        if body and kind != "application/x-www-form-urlencoded":
            raise Refused(415, f"{kind or 'No content type'}: send a form or a JSON object of texts.")
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict"))
    except (msgspec.MsgspecError, ValueError) as error:
        raise Refused(400, f"The form can't be read: {error}") from error


def _with_headers(send: Send, cookies: list[str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=_raw(message))
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
            if "set-cookie" not in headers:
                for cookie in cookies:
                    headers.append("set-cookie", cookie)
        await send(message)

    return sending


def _raw(message: Message) -> list[tuple[bytes, bytes]]:
    message["headers"] = raw = list[Any](message.get("headers", ()))
    return raw
