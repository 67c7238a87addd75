"""The dashboard as a view of Django, under WSGI and ASGI, for the site's staff.

The view passes a request to the dashboard, an ASGI application, on the event loop of synchronous calls. So it
needs no event loop of the server. Under ASGI a live page is a stream on the server's loop. Under WSGI a
stream would occupy a thread of the server, so each live request gets one update, and the browser reconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from django.contrib.admin.views.decorators import staff_member_required
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt
from starlette.types import Message, Scope

from dayjob.contrib.django.site_app import app
from dayjob.dashboard import Dashboard, User
from dayjob.dashboard import dashboard as make_dashboard
from dayjob.dashboard.wsgi import USER, Messages

MAY_ACT = "dayjob.change_job"
"""The permission to cancel, requeue, pause and so on. Staff without it may read."""

_dashboards: WeakKeyDictionary[asyncio.AbstractEventLoop, Dashboard] = WeakKeyDictionary()
"""A dashboard belongs to one event loop."""


@csrf_exempt  # type: ignore[untyped-decorator]
@staff_member_required  # type: ignore[untyped-decorator]
def dashboard(request: HttpRequest, path: str = "") -> HttpResponse | StreamingHttpResponse:
    """Answer a request for a page below the dashboard. The dashboard checks its own CSRF tokens."""
    scope = _scope(request, path)
    live = path.startswith("events/") or path.endswith("/events")
    if live and isinstance(request, ASGIRequest) and request.method == "GET":
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(_stream(scope), content_type="text/event-stream", headers=headers)
    messages = Messages(request.body)
    app.call(lambda: _pass(scope, messages))
    response = HttpResponse(b"".join(messages.body), status=messages.status)
    del response.headers["Content-Type"]
    for name, value in messages.headers:
        if name == "set-cookie":
            response.cookies.load(value)
        elif name != "content-length":
            response.headers[name] = value
    return response


def _scope(request: HttpRequest, path: str) -> Scope:
    meta = request.META
    server = (meta.get("SERVER_NAME", ""), int(meta.get("SERVER_PORT") or 0))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": request.path.removesuffix(path).rstrip("/"),
        "query_string": meta.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in request.headers.items()
        ],
        "client": (meta.get("REMOTE_ADDR", ""), 0),
        "server": server,
        USER: User(str(request.user.get_username()), may_act=request.user.has_perm(MAY_ACT)),
    }


def _dashboard() -> Dashboard:
    loop = asyncio.get_running_loop()
    found = _dashboards.get(loop)
    if found is None:
        found = _dashboards[loop] = make_dashboard(app, authorize=lambda request: request.scope[USER])
    return found


async def _pass(scope: Scope, messages: Messages) -> None:
    await _dashboard()(scope, messages.receive, messages.send)


async def _stream(scope: Scope) -> AsyncIterator[bytes]:
    """Yield the updates of a live page, until it ends or the client disconnects."""
    chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await chunks.put(message.get("body", b""))
            if not message.get("more_body"):
                await chunks.put(None)

    running = asyncio.ensure_future(_dashboard()(scope, Messages(b"").receive, send))
    try:
        while (chunk := await chunks.get()) is not None:
            yield chunk
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
