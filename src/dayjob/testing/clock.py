"""A clock that tests advance."""

from __future__ import annotations

import asyncio
from datetime import datetime

from dayjob.model.durations import SECOND, Duration, to_datetime, to_instant, to_micros

_START = 1_767_225_600 * SECOND


class ManualClock:
    """A clock that only ``advance`` and ``set`` move: ``Broker(url, clock=ManualClock())``."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = _START if start is None else to_instant(start, "start")
        self._elapsed = 0
        self._timers: list[tuple[int | None, asyncio.Event]] = []

    def now(self) -> int:
        return self._now

    @property
    def time(self) -> datetime:
        return to_datetime(self._now)

    def elapsed(self) -> float:
        return self._elapsed / SECOND

    def advance(self, by: Duration) -> None:
        """Advance the clock and wake the waits that are over. Call it on the event loop of the waits."""
        micros = to_micros(by, "by")
        self._now += micros
        self._elapsed += micros
        for deadline, alarm in self._timers:
            if deadline is not None and deadline <= self._elapsed:
                alarm.set()

    def set(self, time: datetime) -> None:
        """Jump to a time, also back. Waits use the elapsed time, so a jump does not end them."""
        self._now = to_instant(time, "time")

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        if event.is_set():
            return True
        if timeout is not None and timeout <= 0:
            return False
        alarm = asyncio.Event()
        timer = (None if timeout is None else self._elapsed + round(timeout * SECOND), alarm)
        self._timers.append(timer)
        waiting = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(alarm.wait())}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._timers.remove(timer)
            for task in waiting:
                task.cancel()
        return event.is_set()
