"""The registration of a worker: an id that is new for each start, and heartbeats that keep it alive.

The heartbeat sends the beats also while a handler blocks the event loop, so that the worker does not look
dead. A worker that was declared dead registers again under a new id; claims of the old id are lost.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from msgspec.structs import replace

from dayjob._version import __version__
from dayjob.app import App
from dayjob.broker import Broker
from dayjob.broker.worker_registry import Member, next_beat
from dayjob.duties import BEATS
from dayjob.model.durations import SECOND, to_micros
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key
from dayjob.runtime.process import this_process
from dayjob.worker.shared_beats import CONFIRMED_WITHIN, BeatGroup, Store, next_beat_at

ALONE_INTERVAL = 60.0
"""Seconds between beats where only one process can open the storage, so that no other waits for them."""


class Registration:
    """The record of a worker in the registry."""

    def __init__(self, app: App, name: str, queues: tuple[str, ...], slots: int) -> None:
        process = this_process()
        self._app = app
        self._member = Member(
            id=_new_id(name),
            name=name,
            app=app.name,
            host=socket.gethostname(),
            machine=process.host,
            pid=process.pid,
            process_started=process.started,
            version=__version__,
            queues=queues,
            tasks=tuple(sorted(app.tasks)),
            schedules=tuple(recurring.id for recurring in app.recurring()),
            slots=slots,
            dead_after=to_micros(app.config.dead_after, "dead_after"),
        )
        self._old_ids: list[str] = []
        """Ids that were declared dead and whose claims may not be reclaimed yet."""
        self.beat_at = float("-inf")
        """The time of the next beat, on the clock's ``elapsed``."""

    @property
    def id(self) -> str:
        return self._member.id

    async def join(self, broker: Broker) -> None:
        member = self._member
        if not broker.capabilities.multi_process:
            silent = max(member.dead_after, round(BEATS * ALONE_INTERVAL * SECOND))
            member = replace(member, dead_after=silent)
        self._member = await broker.register(member)
        self._schedule_next(broker)

    @property
    def may_share(self) -> bool:
        """Whether another worker can store the next heartbeat: no work of this worker depends on it."""
        return not self._old_ids

    async def share(self, group: BeatGroup, broker: Broker, running: int, store: Store) -> bool:
        """Store a heartbeat together with those of other workers. Return False if it is not confirmed."""
        fresh, beat = next_beat(self._member, running)
        if not await group.share(beat, store, self._member.dead_after / SECOND / CONFIRMED_WITHIN):
            return False
        self._member = fresh
        self._schedule_next(broker)
        return True

    async def beat(self, broker: Broker, running: int, replaced: Callable[[str], None]) -> None:
        """Store a heartbeat. If the worker was declared dead, register it again and call ``replaced``."""
        member = await broker.beat(self._member, running)
        if member is not None:
            self._member = member
        else:
            old = self._member.id
            fresh = replace(self._member, id=_new_id(self._member.name), beat=0, running=0)
            self._member = await broker.register(fresh)
            self._old_ids.append(old)
            replaced(old)
        if self._old_ids:
            await broker.reclaim_from(self._old_ids)
            # The schedules of a worker that was declared dead may have been removed.
            await broker.declare(self._app.name, self._app.recurring())
            self._old_ids.clear()
        self._schedule_next(broker)

    def silent_for(self) -> float | None:
        """Return how late the next beat is, if others may have declared the worker dead by now."""
        late = SYSTEM.elapsed() - self.beat_at
        return late if late > self._member.dead_after / SECOND else None

    async def leave(self, broker: Broker) -> None:
        await broker.deregister(self._member)

    def _schedule_next(self, broker: Broker) -> None:
        alone = not broker.capabilities.multi_process
        interval = ALONE_INTERVAL if alone else self._member.dead_after / SECOND / BEATS
        self.beat_at = next_beat_at(interval)


def _new_id(name: str) -> str:
    return f"{name}-{new_key().hex()[-8:]}"
