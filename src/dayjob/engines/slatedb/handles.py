"""One handle for each database in a process. A second one would fence the first."""

from __future__ import annotations

import os
from threading import Lock
from typing import Any

from msgspec.structs import replace

from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.engines.slatedb.store_thread import StoreThread
from dayjob.errors import ConfigError, EngineFenced

_threads: dict[Any, StoreThread] = {}
_lock = Lock()
_lost: set[Any] = set()
"""Databases that were taken over from this process. It does not take them back: that would never end."""
_epochs: dict[Any, int] = {}
"""The largest epoch that this process may have opened each database with, if a thread of it has failed."""
_inherited = False


def acquire(settings: SlateSettings, *, again: bool = False) -> StoreThread:
    """Return the open or opening thread of the database, shared by all its engines.

    ``again`` opens the database only if no other process has opened it since this one has lost it.
    """
    if _inherited:
        raise ConfigError(
            f"{settings.url}: this process was forked from one that had SlateDB open, and its threads "
            "did not survive the fork: start processes with the 'spawn' method"
        )
    with _lock:
        identity = settings.identity
        thread = _threads.get(identity)
        if thread is not None and thread.failure is not None:
            _remember(thread)
        if again or identity in _lost:
            settings = replace(settings, take_over=False)
        if thread is None or thread.users == 0 or thread.failure is not None:
            ending = thread.closed if thread is not None and thread.failure is None else None
            thread = StoreThread(settings, ending, _epochs.get(identity) if again else None)
            _threads[identity] = thread
        thread.users += 1
        return thread


def release(thread: StoreThread) -> bool:
    """Release the thread. Return whether that was its last user, so that it now ends."""
    with _lock:
        thread.users -= 1
        if thread.users > 0:
            return False
    thread.end()
    return True


def forget(thread: StoreThread) -> None:
    """Remove a thread that has ended."""
    with _lock:
        if thread.failure is not None:
            _remember(thread)
        if _threads.get(thread.settings.identity) is thread:
            del _threads[thread.settings.identity]


def _remember(failed: StoreThread) -> None:
    identity = failed.settings.identity
    if isinstance(failed.failure, EngineFenced):
        _lost.add(identity)
    if failed.epoch is not None:
        _epochs[identity] = max(failed.epoch, _epochs.get(identity, 0))


def find(settings: SlateSettings) -> StoreThread | None:
    with _lock:
        return _threads.get(settings.identity)


def _in_child() -> None:
    global _threads, _lock, _inherited
    _inherited = _inherited or bool(_threads)
    _threads, _lock = {}, Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
