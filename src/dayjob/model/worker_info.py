"""The answer of ``workers()``."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from dayjob.model.durations import to_datetime


class WorkerInfo(Struct, frozen=True):
    """A live worker, as of its last heartbeat."""

    id: str
    """New for each start. The jobs that it runs have it as ``worker``."""
    name: str
    app: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    """Empty: all queues."""
    tasks: tuple[str, ...]
    slots: int
    running: int
    started_us: int
    seen_us: int

    @property
    def started(self) -> datetime:
        return to_datetime(self.started_us)

    @property
    def seen(self) -> datetime:
        return to_datetime(self.seen_us)

    def serves(self, queue: str) -> bool:
        return not self.queues or queue in self.queues
