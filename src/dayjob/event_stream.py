"""Server-sent events as a response of Starlette. Needs the extra ``dashboard`` or ``starlette``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

COMMENT = b": keepalive\n\n"

KEEPALIVE = 15.0
"""Seconds without an update after which a comment is sent. It detects a broken connection."""

LIFETIME = 60.0
"""Seconds after which a stream ends and the browser reconnects, so that a shutdown need not wait for it."""


class EventStream(Response):
    """Sends messages until they end or the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        sending = asyncio.ensure_future(self._send(send))
        disconnected = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, disconnected):
                task.cancel()
            error, _ = await asyncio.gather(sending, disconnected, return_exceptions=True)
        if isinstance(error, Exception):
            raise error

    async def _send(self, send: Send) -> None:
        messages = self._messages
        try:
            with suppress(OSError):
                async for message in messages:
                    await send({"type": "http.response.body", "body": message, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            closing = getattr(messages, "aclose", None)
            if closing is not None:
                await closing()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
