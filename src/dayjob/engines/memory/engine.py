"""The memory engine: a verb runs under the lock of its store."""

from __future__ import annotations

from dayjob.engines.base import Capabilities, Diagnostic, Reply, Token
from dayjob.engines.local import Claims, LocalEngine, Verb
from dayjob.engines.memory.store import MemoryStore
from dayjob.engines.store import run_now
from dayjob.runtime.clock import Clock


class MemoryEngine(LocalEngine[MemoryStore]):
    """Jobs in the memory of this process."""

    capabilities = Capabilities()

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        super().__init__(clock)
        self._store = store

    async def open(self) -> None:
        self._store.subscribers.add(self.signals)

    async def close(self) -> None:
        self._store.subscribers.remove(self.signals)

    async def _write(
        self, verb: Verb[MemoryStore, Reply], token: Token | None = None, claims: Claims[Reply] | None = None
    ) -> Reply:
        store = self._store
        with store.lock:
            reply = run_now(verb(store))
            topics, store.topics = store.topics, set()
        store.subscribers.publish(topics, self.signals)
        return reply

    async def diagnose(self) -> list[Diagnostic]:
        return [
            Diagnostic(
                "durability", "warning", "jobs are kept in memory only", "use sqlite:/// to keep them on disk"
            )
        ]
