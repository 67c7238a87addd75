"""A one-time signal with a reason. Coroutines and threads can wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

from msgspec import Struct

from dayjob.runtime.threads import call_on

Reason = Literal["cancel", "shutdown", "lost", "timeout"]


class StopSignal(Struct, eq=False):
    """Set once; the first reason stays. An event is allocated for the first waiter only."""

    _guard: ClassVar = threading.Lock()

    _reason: Reason | None = None
    _callbacks: list[Callable[[], None]] | None = None
    _thread_event: threading.Event | None = None

    @property
    def reason(self) -> Reason | None:
        """The reason, or None while it is not set."""
        return self._reason

    def is_set(self) -> bool:
        return self._reason is not None

    def __bool__(self) -> bool:
        return self._reason is not None

    def set(self, reason: Reason) -> None:
        """Set the signal. Callable from any thread."""
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
        """Call back in the thread that sets the signal, or at once if it is set."""
        with StopSignal._guard:
            if self._reason is None:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback()

    def _remove(self, callback: Callable[[], None]) -> None:
        with StopSignal._guard:
            if self._callbacks is not None:
                self._callbacks.remove(callback)

    async def wait(self) -> Reason:
        """Wait for the signal on an event loop."""
        event = asyncio.Event()
        wake = partial(call_on, asyncio.get_running_loop(), event.set)
        self.when_set(wake)
        try:
            await event.wait()
        finally:
            self._remove(wake)
        assert self._reason is not None
        return self._reason

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Wait for the signal in a thread. Return whether it was set before the timeout."""
        with StopSignal._guard:
            if self._reason is not None:
                return True
            if self._thread_event is None:
                self._thread_event = threading.Event()
            event = self._thread_event
        return event.wait(timeout)

    def __repr__(self) -> str:
        return f"StopSignal(reason={self._reason!r})"
