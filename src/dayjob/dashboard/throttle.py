"""The throttle of failed logins: an address that failed is slowed down, never locked out."""

from __future__ import annotations

import asyncio

from dayjob.runtime.clock import SYSTEM, Clock

FIRST_GAP = 0.25
MAX_GAP = 2.0
"""Seconds between two tries of an address. They double with each failure of the last minute."""

FAILURE_WINDOW = 60.0
MAX_WAIT = 20.0
"""Seconds that a try may wait for its turn. Later ones are refused unread."""

_MAX_ADDRESSES = 10_000


class LoginThrottle:
    """Spaces the tries of an address that has failed. The address is that of the true client."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._failures: dict[str, list[float]] = {}
        self._next: dict[str, float] = {}

    async def wait(self, address: str) -> bool:
        """Wait for the turn of the address. Return False if too many tries wait already.

        Without recent failures it returns without a switch of tasks, so that a burst of first tries does not
        pass before the first of them has failed.
        """
        now = self._clock.elapsed()
        gap = self._gap(address, now)
        if not gap:
            return True
        turn = max(now, self._next.get(address, now))
        if turn - now > MAX_WAIT:
            return False
        self._next[address] = turn + gap
        if turn > now:
            await self._clock.wait(asyncio.Event(), turn - now)
        return True

    def record_failure(self, address: str) -> None:
        now = self._clock.elapsed()
        if address not in self._failures and len(self._failures) >= _MAX_ADDRESSES:
            oldest = next(iter(self._failures))
            self._failures.pop(oldest)
            self._next.pop(oldest, None)
        self._failures[address] = [*self._recent(address, now)[-9:], now]
        self._next[address] = max(self._next.get(address, now), now + self._gap(address, now))

    def _gap(self, address: str, now: float) -> float:
        failures = len(self._recent(address, now))
        return min(FIRST_GAP * 2 ** (failures - 1), MAX_GAP) if failures else 0.0

    def _recent(self, address: str, now: float) -> list[float]:
        return [at for at in self._failures.get(address, ()) if at > now - FAILURE_WINDOW]
