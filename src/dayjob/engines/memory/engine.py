"""The memory engine: a verb runs under the lock of its store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from dayjob.engines.base import Capabilities, Diagnostic, Insertion, Token
from dayjob.engines.local import Claims, LocalEngine
from dayjob.engines.memory.store import MemoryStore
from dayjob.engines.store import run_now
from dayjob.errors import ConfigError
from dayjob.model.job import Enqueued
from dayjob.runtime.clock import Clock

Reply = TypeVar("Reply")


class MemoryEngine(LocalEngine[MemoryStore]):
    """Jobs in the memory of this process."""

    capabilities = Capabilities(
        persistent=False,
        multi_process=False,
        transactional_enqueue=False,
        knows_orphans=False,
        stores_replies=False,
    )

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        super().__init__(clock)
        self._store = store

    async def open(self) -> None:
        self._store.subscribers.add(self.signals)

    async def close(self) -> None:
        self._store.subscribers.remove(self.signals)

    async def _write(
        self,
        verb: Callable[[MemoryStore], Coroutine[Any, Any, Reply]],
        token: Token | None = None,
        claims: Claims[Reply] | None = None,
    ) -> Reply:
        store = self._store
        with store.lock:
            reply = run_now(verb(store))
            topics, store.topics = store.topics, set()
        store.subscribers.publish(topics, self.signals)
        return reply

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        raise ConfigError(
            f"connection={connection!r}: memory:// has no transactions to join; "
            "leave connection out, or use sqlite:///"
        )

    async def diagnose(self) -> list[Diagnostic]:
        return [
            Diagnostic(
                "durability", "warning", "jobs are kept in memory only", "use sqlite:/// to keep them on disk"
            )
        ]
