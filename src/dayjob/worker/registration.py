"""A worker's place on the roster: an id of its own for each start, and a beat to show that it lives.

The beats come from the heartbeat's thread, so that a handler that blocks the loop does not look like an end.
A worker that finds itself declared dead takes a new id; what it ran under the old one is lost.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from msgspec.structs import replace

from dayjob._version import __version__
from dayjob.app import App
from dayjob.broker import Broker
from dayjob.broker.worker_registry import Member
from dayjob.duties import BEATS
from dayjob.model.durations import SECOND, to_micros
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key
from dayjob.runtime.process import this_process

ALONE_INTERVAL = 60.0
"""Seconds between beats where no other process can have the storage: they are for the record only."""


class Registration:
    """Who a worker is, to the rest of the fleet."""

    def __init__(self, app: App, name: str, queues: tuple[str, ...], slots: int) -> None:
        here = this_process()
        self._app = app
        self._member = Member(
            _new_id(name),
            name,
            app.name,
            socket.gethostname(),
            here.host,
            here.pid,
            here.started,
            __version__,
            queues,
            tuple(sorted(app.tasks)),
            tuple(recurring.id for recurring in app.recurring()),
            slots,
            to_micros(app.config.dead_after, "dead_after"),
        )
        self._old: list[str] = []
        """Under what it was declared dead, and may have left claims behind."""
        self.beat_at = float("-inf")
        """When the next beat is due, on the clock's ``elapsed``."""

    @property
    def id(self) -> str:
        return self._member.id

    async def join(self, broker: Broker) -> None:
        member = self._member
        if not broker.capabilities.multi_process:
            silent = max(member.dead_after, round(BEATS * ALONE_INTERVAL * SECOND))
            member = replace(member, dead_after=silent)
        self._member = await broker.register(member)
        self._next(broker)

    async def beat(self, broker: Broker, running: int, replaced: Callable[[str], None]) -> None:
        """Tell that the worker lives. If it was declared dead, it is told so, and on the roster anew."""
        member = await broker.beat(self._member, running)
        if member is not None:
            self._member = member
        else:
            old = self._member.id
            fresh = replace(self._member, id=_new_id(self._member.name), beat=0, running=0)
            self._member = await broker.register(fresh)
            self._old.append(old)
            replaced(old)
        if self._old:
            await broker.reclaim_from(self._old)
            await broker.declare(self._app.name, self._app.recurring())  # They may be gone by now.
            self._old.clear()
        self._next(broker)

    def silent_for(self) -> float | None:
        """Seconds since a beat was due that did not come about in all the time that others wait for one."""
        late = SYSTEM.elapsed() - self.beat_at
        return late if late > self._member.dead_after / SECOND else None

    async def leave(self, broker: Broker) -> None:
        await broker.deregister(self._member)

    def _next(self, broker: Broker) -> None:
        alone = not broker.capabilities.multi_process
        interval = ALONE_INTERVAL if alone else self._member.dead_after / SECOND / BEATS
        self.beat_at = SYSTEM.elapsed() + interval


def _new_id(name: str) -> str:
    return f"{name}-{new_key().hex()[-8:]}"
