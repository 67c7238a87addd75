"""The memory engine's face to the broker: each verb is one turn in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from typing import Any

from dayjob.engines.base import (
    Capabilities,
    ClaimRequest,
    Diagnostic,
    Document,
    DocumentWrite,
    Insertion,
    JobQuery,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    RetentionByQueue,
    SettleOp,
    Token,
)
from dayjob.engines.memory.store import Store
from dayjob.errors import ConfigError
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState, QueueStats
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import Signals


class MemoryEngine:
    """Jobs in this process's memory; see ``engines.base.Engine`` for the verbs."""

    capabilities = Capabilities(
        persistent=False, multi_process=False, transactional_enqueue=False, knows_orphans=False
    )

    def __init__(self, store: Store, clock: Clock) -> None:
        self.signals = Signals()
        self._store = store
        self._clock = clock
        self.timeout = 0.0

    def _now(self, now: int | None) -> int:
        return self._clock.now() if now is None else now

    async def open(self) -> None:
        self._store.join(self.signals, asyncio.get_running_loop())

    async def close(self) -> None:
        self._store.leave(self.signals)

    async def insert(
        self, jobs: Sequence[Insertion], now: int | None = None, token: Token | None = None
    ) -> list[Enqueued]:
        with self._store.commit(self.signals) as store:
            return store.insert(jobs, self._now(now))

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        raise ConfigError(
            f"connection={connection!r}: memory:// has no transactions to join; "
            "leave connection out, or use sqlite:///"
        )

    async def claim(
        self, requests: Sequence[ClaimRequest], now: int | None = None, token: Token | None = None
    ) -> list[list[Job]]:
        at = self._now(now)
        with self._store.commit(self.signals) as store:
            return [store.claim(request, at) for request in requests]

    async def insert_and_claim(
        self,
        jobs: Sequence[Insertion],
        requests: Sequence[ClaimRequest],
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        at = self._now(now)
        with self._store.commit(self.signals) as store:
            return store.insert(jobs, at), [store.claim(request, at) for request in requests]

    async def settle(
        self, ops: Sequence[SettleOp], now: int | None = None, token: Token | None = None
    ) -> list[JobState | None]:
        at = self._now(now)
        with self._store.commit(self.signals) as store:
            return [store.settle(op, at) for op in ops]

    async def renew(
        self, renewals: Sequence[Renewal], now: int | None = None, token: Token | None = None
    ) -> list[Renewed]:
        at = self._now(now)
        with self._store.commit(self.signals) as store:
            return [store.renew(renewal, at) for renewal in renewals]

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        with self._store.commit(self.signals) as store:
            for report in reports:
                store.record_progress(report)

    async def cancel(
        self,
        keys: Sequence[bytes],
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> list[CancelOutcome]:
        at = self._now(now)
        with self._store.commit(self.signals) as store:
            return [store.cancel(key, retention, at) for key in keys]

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        with self._store.commit(self.signals) as store:
            return store.cancel_requests()

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        with self._store.commit(self.signals) as store:
            return [entry.to_job() if (entry := store.jobs.get(key)) else None for key in keys]

    async def find(self, query: JobQuery) -> list[Job]:
        with self._store.commit(self.signals) as store:
            return store.find(query)

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        with self._store.commit(self.signals) as store:
            return store.find_dead(queue, before, limit)

    async def requeue(
        self, keys: Sequence[bytes], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        at = self._now(now)
        with self._store.commit(self.signals) as store:
            return [store.requeue(key, at) for key in keys]

    async def requeue_dead(
        self, queue: str, limit: int, now: int | None = None, token: Token | None = None
    ) -> int:
        with self._store.commit(self.signals) as store:
            return store.requeue_dead(queue, limit, self._now(now))

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        with self._store.commit(self.signals) as store:
            return store.purge_dead(queue, limit)

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        with self._store.commit(self.signals) as store:
            return store.purge(keys)

    async def reschedule(
        self, changes: Sequence[Reschedule], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        at = self._now(now)
        with self._store.commit(self.signals) as store:
            return [store.reschedule(change, at) for change in changes]

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        with self._store.commit(self.signals) as store:
            wanted = sorted(store.stats if queues is None else set(queues) & set(store.stats))
            return {queue: copy(store.stats[queue]) for queue in wanted}

    async def position(self, key: bytes, limit: int) -> int:
        with self._store.commit(self.signals) as store:
            return store.position(key, limit)

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._store.commit(self.signals) as store:
            return [store.kv.get(key) for key in keys]

    async def kv_write(
        self, writes: Sequence[tuple[bytes, bytes | None]], token: Token | None = None
    ) -> None:
        with self._store.commit(self.signals) as store:
            for key, value in writes:
                if value is None:
                    store.kv.pop(key, None)
                else:
                    store.kv[key] = value

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        with self._store.commit(self.signals) as store:
            store.pause(queue, paused)

    async def paused(self) -> set[str]:
        with self._store.commit(self.signals) as store:
            return set(store.paused)

    async def promote(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        with self._store.commit(self.signals) as store:
            return store.promote(limit, retention, self._now(now))

    async def next_due(self, now: int | None = None) -> int | None:
        with self._store.commit(self.signals) as store:
            return store.next_due(self._now(now))

    async def reap(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> int:
        with self._store.commit(self.signals) as store:
            return store.reap(limit, retention, self._now(now))

    async def reclaim(
        self,
        workers: Sequence[str],
        limit: int,
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> int:
        with self._store.commit(self.signals) as store:
            return store.reclaim(set(workers), limit, retention, self._now(now))

    async def sweep(self, limit: int, now: int | None = None, token: Token | None = None) -> int:
        with self._store.commit(self.signals) as store:
            return store.sweep(limit, self._now(now))

    async def sweep_finished(
        self,
        state: JobState,
        age: int,
        after: bytes | None,
        limit: int,
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[int, bytes | None]:
        with self._store.commit(self.signals) as store:
            return store.sweep_finished(state, age, after, limit, self._now(now))

    async def documents(self, kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        with self._store.commit(self.signals) as store:
            return self._now(now), store.documents_of(kind)

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        now: int | None = None,
        token: Token | None = None,
    ) -> bool:
        with self._store.commit(self.signals) as store:
            return store.compare_and_set(writes, jobs, announce, self._now(now))

    async def diagnose(self) -> list[Diagnostic]:
        return [
            Diagnostic(
                "durability", "warning", "jobs are kept in memory only", "use sqlite:/// to keep them on disk"
            )
        ]
