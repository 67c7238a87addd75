"""A one-time signal with a reason, waitable from coroutines and from threads alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Literal

from msgspec import Struct

Reason = Literal["cancel", "shutdown", "lost", "timeout"]


class StopSignal(Struct, eq=False):
    """Set once; the first reason stays. Costs next to nothing until somebody waits."""

    _guard: ClassVar = threading.Lock()

    _reason: Reason | None = None
    _callbacks: list[Callable[[], None]] | None = None
    _thread_event: threading.Event | None = None

    @property
    def reason(self) -> Reason | None:
        """Why it was set, or None while it is not."""
        return self._reason

    def is_set(self) -> bool:
        return self._reason is not None

    def __bool__(self) -> bool:
        return self._reason is not None

    def set(self, reason: Reason) -> None:
        """Set it, from any thread."""
        with StopSignal._guard:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, None
            event = self._thread_event
        if event is not None:
            event.set()
        for callback in callbacks or ():
            callback()

    def when_set(self, callback: Callable[[], None]) -> None:
        """Call back when it is set, in the thread that sets it; at once if it is."""
        with StopSignal._guard:
            if self._reason is None:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback()

    def _forget(self, callback: Callable[[], None]) -> None:
        with StopSignal._guard:
            if self._callbacks is not None:
                self._callbacks.remove(callback)

    async def wait(self) -> Reason:
        """Wait for it on an event loop."""
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # The loop is closed, and nobody waits on it any more.
                loop.call_soon_threadsafe(event.set)

        self.when_set(tell)
        try:
            await event.wait()
        finally:
            self._forget(tell)
        assert self._reason is not None
        return self._reason

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Wait for it in a thread; false if the seconds passed first."""
        with StopSignal._guard:
            if self._reason is not None:
                return True
            if self._thread_event is None:
                self._thread_event = threading.Event()
            event = self._thread_event
        return event.wait(timeout)

    def __repr__(self) -> str:
        return f"StopSignal(reason={self._reason!r})"
