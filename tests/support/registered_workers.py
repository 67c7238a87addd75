"""Workers on the roster, as tests put them there."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dayjob.broker.worker_registry import Member
from dayjob.runtime.process import this_process

_here = this_process()

MEMBER = Member(
    "w-1", "w", "app", "host", _here.host, _here.pid, _here.started, "1.0", ("q",), ("t",), (), 10, 15_000_000
)
"""A worker of this very process."""


def elsewhere(id: str, **changes: Any) -> Member:
    """A worker of another machine, of which nothing is known but what it tells."""
    return replace(MEMBER, id=id, machine="another machine", **changes)
