"""The limit of connection attempts in an outage: one a second in a process, for all of its pools together.

Without it, each pool, listener and heartbeat of each worker would try by itself, and a large fleet would keep
a server from starting. The first attempt after a broken connection is made at once. After one that failed,
the others wait for the end of the pause. One of them makes the next attempt. If it succeeds, all continue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dayjob.runtime import entropy
from dayjob.runtime.clock import SYSTEM, Clock

PAUSE = 1.0
"""Seconds from a failed attempt to the next one. A random part of half of it is added, so that the processes
of a fleet do not try at the same time."""

_LONGEST_WAIT = 2.0
"""Seconds after which a call fails without an attempt. Its caller repeats it."""

_POLL = 0.05
"""Seconds between looks at the attempt of another thread or task."""


class TooSoon(OSError):
    """No attempt was made, as another one has failed or is under way."""


class ConnectLimit:
    """The attempts of this process to connect to one server, from any thread."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._failure: Exception | None = None
        """The error of the last attempt, if it failed."""
        self._next_at = 0.0
        self._trying = False
        """Whether an attempt is under way since the last failure."""

    @asynccontextmanager
    async def attempt(self, *failures: type[Exception]) -> AsyncIterator[None]:
        """Make an attempt in the block, when it is time for one. These errors are failures of the server."""
        give_up_at = self._clock.elapsed() + _LONGEST_WAIT
        while (pause := self.begin()) > 0:
            if self._clock.elapsed() >= give_up_at:
                raise TooSoon(f"{type(self._failure).__name__}: {self._failure} (one attempt a second)")
            await self._clock.wait(asyncio.Event(), pause)
        try:
            yield
        except failures as error:
            self.end(error)
            raise
        except BaseException:  # An error of the configuration, or the caller was cancelled.
            self.end(self._failure)
            raise
        self.end(None)

    def begin(self) -> float:
        """Begin an attempt and return 0, or return seconds until one may begin."""
        with self._guard:
            if self._failure is None:
                return 0.0
            if self._trying:
                return _POLL
            pause = self._next_at - self._clock.elapsed()
            self._trying = pause <= 0
            return max(pause, 0.0)

    def end(self, failure: Exception | None) -> None:
        with self._guard:
            self._failure = failure
            self._trying = False
            self._next_at = self._clock.elapsed() + PAUSE * (1 + entropy.fraction() / 2)


_limits: dict[str, ConnectLimit] = {}


def connect_limit(address: str) -> ConnectLimit:
    """Return the limit for a server: the same one for all connections of this process."""
    return _limits.setdefault(address, ConnectLimit())
