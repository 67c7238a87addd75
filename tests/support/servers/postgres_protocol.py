"""The frames of PostgreSQL's protocol, and the few messages that tests read or write."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import NamedTuple

from tests.support.waiting import turns

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
NOT_ENCRYPTED = b"N"

GONE = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)
"""The errors of a stream whose other end is closed."""


class Message(NamedTuple):
    kind: bytes
    body: bytes

    @property
    def encoded(self) -> bytes:
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body

    def texts(self, count: int) -> list[str]:
        """Return the first NUL-terminated texts of the body."""
        return [text.decode() for text in self.body.split(b"\0", count)[:count]]


async def read_message(reader: asyncio.StreamReader) -> Message:
    kind, size = struct.unpack("!ci", await reader.readexactly(5))
    return Message(kind, await reader.readexactly(size - 4))


class Opening(NamedTuple):
    """The first message of a client. ``code`` is the protocol version, or a special request."""

    code: int
    body: bytes

    @property
    def encoded(self) -> bytes:
        return struct.pack("!ii", len(self.body) + 8, self.code) + self.body

    @property
    def asks_for_encryption(self) -> bool:
        return self.code in (SSL_REQUEST, GSS_REQUEST)

    @property
    def parameters(self) -> dict[str, str]:
        texts = [text.decode() for text in self.body.split(b"\0")]
        return dict(zip(texts[:-2:2], texts[1:-1:2], strict=False))


async def read_opening(reader: asyncio.StreamReader) -> Opening:
    size, code = struct.unpack("!ii", await reader.readexactly(8))
    return Opening(code, await reader.readexactly(size - 8))


def opening(parameters: Mapping[str, str]) -> Opening:
    """Return the message that starts a session, with protocol 3.0."""
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items())
    return Opening(196608, body + b"\0")


def error(severity: str, code: str, text: str) -> Message:
    fields = f"S{severity}\0V{severity}\0C{code}\0M{text}\0"
    return Message(b"E", fields.encode() + b"\0")


def ready(status: bytes) -> Message:
    return Message(b"Z", status)


async def abort(*writers: asyncio.StreamWriter) -> None:
    """Close without sending the buffered data."""
    for writer in writers:
        writer.transport.abort()
    await turns(2)  # The transport closes in the next turn of the loop.
