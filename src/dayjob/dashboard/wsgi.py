"""The dashboard as a WSGI application, for hosts without an event loop: Flask, Django under WSGI.

It runs on an event loop in a thread of its own. A live page polls: each of its streams ends after the first
update and the browser reconnects, so that no page occupies a thread of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from starlette.types import Message, Scope

from dayjob.app import App
from dayjob.dashboard.app import dashboard
from dayjob.dashboard.credentials import User
from dayjob.dashboard.security import MAX_FORM_BYTES
from dayjob.errors import ConfigError
from dayjob.runtime.bridge import Bridge

_log = logging.getLogger("dayjob.dashboard")

USER = "dayjob.user"
"""The key of the host's user in a request's scope."""

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class WsgiDashboard:
    """A WSGI application. ``authorize`` is the host's own check, called in the thread of the request."""

    def __init__(
        self,
        source: App | str,
        *,
        authorize: Callable[[Environ], User | None] | None = None,
        **options: Any,
    ) -> None:
        """``options`` are those of ``dashboard``."""
        if not isinstance(source, App | str):
            raise ConfigError(f"{source!r} is a {type(source).__name__}: pass an App or a URL under WSGI")
        self._source = source
        self._authorize = authorize
        if authorize is not None:
            options["authorize"] = lambda request: request.scope[USER]
        self._dashboard = dashboard(source, **options)
        self._bridge = Bridge("dayjob-dashboard")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request. ``SCRIPT_NAME`` is the path that the dashboard is mounted under."""
        user = None if self._authorize is None else self._authorize(environ)
        messages = Messages(_body(environ))
        scope = {**_scope(environ), USER: user}
        try:
            self._bridge.run(lambda: self._dashboard(scope, messages.receive, messages.send))
        except Exception:
            if messages.status is None:
                raise
            _log.exception("%s %s failed", scope["method"], scope["path"])
        assert messages.status is not None
        start_response(f"{messages.status} {HTTPStatus(messages.status).phrase}", messages.headers)
        return messages.body

    def close(self) -> None:
        """Close the brokers that the dashboard opened."""
        self._bridge.run(self._close)
        self._bridge.stop()

    async def _close(self) -> None:
        await self._dashboard.close()
        if isinstance(self._source, App):
            await self._source.close()


class Messages:
    """The messages of one request and its response."""

    def __init__(self, body: bytes) -> None:
        self._request: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._ended = asyncio.Event()
        self.status: int | None = None
        self.headers: list[tuple[str, str]] = []
        self.body: list[bytes] = []

    async def receive(self) -> Message:
        request, self._request = self._request, None
        if request is not None:
            return request
        await self._ended.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]
            ]
        elif chunk := message.get("body", b""):
            self.body.append(chunk)
            is_stream = any(
                name == "content-type" and "event-stream" in value for name, value in self.headers
            )
            if is_stream and chunk.startswith((b"data:", b"event:")):
                self._ended.set()


def _scope(environ: Environ) -> Scope:
    root = _text(environ.get("SCRIPT_NAME", ""))
    client = environ.get("REMOTE_ADDR")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": environ.get("SERVER_PROTOCOL", "HTTP/1.0").removeprefix("HTTP/"),
        "method": environ["REQUEST_METHOD"],
        "scheme": environ["wsgi.url_scheme"],
        "root_path": root,
        "path": root + _text(environ.get("PATH_INFO", "")),
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": list(_headers(environ)),
        "server": (environ["SERVER_NAME"], int(environ["SERVER_PORT"])),
        "client": (client, 0) if client else None,
    }


def _headers(environ: Environ) -> Iterable[tuple[bytes, bytes]]:
    for key, value in environ.items():
        name = key.removeprefix("HTTP_")
        if (name != key or key in ("CONTENT_TYPE", "CONTENT_LENGTH")) and value:
            yield name.replace("_", "-").lower().encode("latin-1"), value.encode("latin-1")


def _text(path: str) -> str:
    """Return a path of the environ, which has a character for each byte."""
    return path.encode("latin-1").decode(errors="replace")


def _body(environ: Environ) -> bytes:
    """Return the body, or enough of it to be refused as too large."""
    length = environ.get("CONTENT_LENGTH") or "0"
    body: bytes = environ["wsgi.input"].read(min(int(length), MAX_FORM_BYTES + 1))
    return body
