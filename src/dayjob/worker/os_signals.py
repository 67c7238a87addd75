"""Handlers for SIGTERM and SIGINT, shared by all workers that request them in the main thread.

They are set with ``signal.signal``. The ``add_signal_handler`` of an event loop delivers signals through a
socket that forked processes share, so a SIGTERM for a helper process of a job would stop the worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from dayjob.runtime.threads import call_on

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_listeners: list[tuple[AbstractEventLoop, Callable[[], None]]] = []
_before: dict[int, Any] = {}
_pid = os.getpid()


@contextmanager
def on_stop_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call back on this event loop for each SIGTERM and SIGINT during the block.

    The handlers that were set before are called too, and restored at the end of the last block. In a thread
    other than the main one, nothing is handled: Python runs signal handlers in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = (asyncio.get_running_loop(), callback)
    if not _listeners:
        _install()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        if not _listeners:
            _restore()


def _install() -> None:
    global _pid
    _pid = os.getpid()
    for number in STOP_SIGNALS:
        _before[number] = signal.signal(number, _handle)


def _restore() -> None:
    while _before:
        number, before = _before.popitem()
        if signal.getsignal(number) is _handle:  # The host may have set another one meanwhile.
            signal.signal(number, before if before is not None else signal.SIG_DFL)


def _handle(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _pid:  # A process that a job forked, before its defaults were restored.
        set_defaults()
        os.kill(os.getpid(), number)
        return
    for loop, callback in _listeners:
        call_on(loop, callback)
    before = _before.get(number)
    if callable(before) and not _cancels_main_task(before):
        before(number, frame)


def _cancels_main_task(handler: Any) -> bool:
    """Return whether this is Python's or asyncio's own handler of SIGINT, which would end the drain."""
    if isinstance(handler, partial):
        return isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)
    return handler is signal.default_int_handler


def set_defaults() -> None:
    """Set the handlers of a new Python process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _forked() -> None:
    if _before:
        _listeners.clear()
        _before.clear()
        set_defaults()


os.register_at_fork(after_in_child=_forked)
