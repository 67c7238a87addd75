"""How the messages of PostgreSQL's protocol are framed, and the few that tests read or write."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import NamedTuple

from tests.support.waiting import turns

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
NOT_ENCRYPTED = b"N"

GONE = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)
"""What a stream raises when its other end is gone."""


class Message(NamedTuple):
    kind: bytes
    body: bytes

    @property
    def encoded(self) -> bytes:
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body

    def texts(self, count: int) -> list[str]:
        """The first texts in the body, each of which ends with a NUL."""
        return [text.decode() for text in self.body.split(b"\0", count)[:count]]


async def read_message(reader: asyncio.StreamReader) -> Message:
    kind, size = struct.unpack("!ci", await reader.readexactly(5))
    return Message(kind, await reader.readexactly(size - 4))


class Opening(NamedTuple):
    """What a client sends first; ``code`` says whether it starts a session or asks for something else."""

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
    """The start of a session, with protocol 3.0."""
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items())
    return Opening(196608, body + b"\0")


def error(severity: str, code: str, text: str) -> Message:
    fields = f"S{severity}\0V{severity}\0C{code}\0M{text}\0"
    return Message(b"E", fields.encode() + b"\0")


def ready(status: bytes) -> Message:
    return Message(b"Z", status)


async def let_go(*writers: asyncio.StreamWriter) -> None:
    """Close without waiting for what was not sent yet."""
    for writer in writers:
        writer.transport.abort()
    await turns(2)  # it is closed in the next turn of the loop
