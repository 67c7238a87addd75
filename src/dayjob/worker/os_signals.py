"""Handlers for SIGTERM and SIGINT, shared by all workers that run in the main thread."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_listeners: list[Callable[[], None]] = []
_before: dict[signal.Signals, Any] = {}


@contextmanager
def on_stop_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call back on each SIGTERM and SIGINT during the block. The last block restores the old handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _listeners:
        _install()
    _listeners.append(callback)
    try:
        yield
    finally:
        _listeners.remove(callback)
        if not _listeners:
            _restore()


def _install() -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, _call_listeners)
            _before[number] = before


def _restore() -> None:
    loop = asyncio.get_running_loop()
    while _before:
        number, before = _before.popitem()
        loop.remove_signal_handler(number)
        signal.signal(number, before if before is not None else signal.SIG_DFL)


def _call_listeners() -> None:
    for listener in _listeners:
        listener()
