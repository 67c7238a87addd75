"""Entries of the worker registry for tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dayjob.broker.worker_registry import Member
from dayjob.runtime.process import this_process

_here = this_process()

MEMBER = Member(
    id="w-1",
    name="w",
    app="app",
    host="host",
    machine=_here.host,
    pid=_here.pid,
    process_started=_here.started,
    version="1.0",
    queues=("q",),
    tasks=("t",),
    schedules=(),
    slots=10,
    dead_after=15_000_000,
)
"""A worker in this process."""


def elsewhere(id: str, **changes: Any) -> Member:
    """Return a worker on another machine, whose process can't be checked."""
    return replace(MEMBER, id=id, machine="another machine", **changes)
