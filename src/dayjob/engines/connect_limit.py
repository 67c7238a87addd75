"""The limit of connection attempts in an outage: one a second in a process, for all of its pools together.

Without it, each pool, listener and heartbeat of each worker would try by itself, and a large fleet would keep
a server from starting. The first attempt after a broken connection is made at once. After one that failed,
the others fail without an attempt until the pause is over; their callers try again later anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dayjob.runtime import entropy
from dayjob.runtime.clock import SYSTEM, Clock

PAUSE = 1.0
"""Seconds from a failed attempt to the next one. A random part of half of it is added, so that the processes
of a fleet do not try at the same time."""


class TooSoon(OSError):
    """No attempt was made, as another one has just failed or is under way."""


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

    @contextmanager
    def attempt(self, *failures: type[Exception]) -> Iterator[None]:
        """Make an attempt in the block, or raise ``TooSoon``. These errors are failures of the server."""
        with self._guard:
            outage = self._failure is not None
            if outage and (self._trying or self._clock.elapsed() < self._next_at):
                raise TooSoon(f"{type(self._failure).__name__}: {self._failure} (one attempt a second)")
            self._trying = outage
        failure: Exception | None = None
        try:
            yield
        except BaseException as error:
            failure = error if isinstance(error, failures) else self._failure
            raise
        finally:
            with self._guard:
                self._failure = failure
                self._next_at = self._clock.elapsed() + PAUSE * (1 + entropy.fraction() / 2)
                self._trying = self._trying and not outage


_limits: dict[str, ConnectLimit] = {}


def connect_limit(address: str) -> ConnectLimit:
    """Return the limit for a server: the same one for all connections of this process."""
    return _limits.setdefault(address, ConnectLimit())
