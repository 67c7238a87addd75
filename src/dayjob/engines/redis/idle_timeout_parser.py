"""The driver's parser of replies, which restarts the time limit of a try whenever data arrives."""

from __future__ import annotations

import asyncio

from redis._parsers.hiredis import _AsyncHiredisParser
from redis.exceptions import ConnectionError as LostConnection


class IdleTimeoutParser(_AsyncHiredisParser):
    """A slow reply is not a failure. A read that gets no data within the time limit is one."""

    def __init__(self, socket_read_size: int) -> None:
        super().__init__(socket_read_size=socket_read_size)
        self._limit: asyncio.Timeout | None = None
        self._silence = 0.0
        self._has_data = False

    def limit_silence(self, limit: asyncio.Timeout | None, silence: float = 0.0) -> None:
        """Set the limit of the try under way. Its first read has the rest of it, later ones ``silence``."""
        self._limit = limit
        self._silence = silence
        self._has_data = False

    async def read_from_socket(self) -> bool:
        if self._limit is not None:
            if self._has_data:
                self._limit.reschedule(asyncio.get_running_loop().time() + self._silence)
            self._has_data = True
        data = await self._stream.read(self._read_size)  # type: ignore[union-attr]
        if not data:
            raise LostConnection("the server closed the connection")
        self._reader.feed(data)  # type: ignore[attr-defined]
        return True
