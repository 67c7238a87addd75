"""The engine's face to the broker: each verb is one turn in the core that all brokers of a database share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
    RetentionTimes,
    SettleOp,
    Token,
)
from dayjob.engines.slatedb import keys, sharing
from dayjob.engines.slatedb import listing as listings
from dayjob.engines.slatedb.core import Core
from dayjob.engines.slatedb.diagnosis import diagnose
from dayjob.engines.slatedb.place import Place
from dayjob.engines.slatedb.store import Store
from dayjob.errors import Closed, ConfigError
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState, QueueStats
from dayjob.model.lifecycle import Transition
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import Signals

CAPABILITIES = Capabilities(
    persistent=True, multi_process=False, transactional_enqueue=False, knows_orphans=True
)


class SlateEngine:
    """Jobs in an object store; see ``engines.base.Engine`` for the verbs."""

    capabilities = CAPABILITIES

    def __init__(self, place: Place, clock: Clock) -> None:
        self.signals = Signals()
        self._place = place
        self.timeout = place.patience
        self._clock = clock
        self._core: Core | None = None

    def _now(self, now: int | None) -> int:
        """The time to act at; to be asked within the work, after it has waited for its turn."""
        return self._clock.now() if now is None else now

    async def open(self) -> None:
        core = sharing.acquire(self._place)
        try:
            await asyncio.shield(asyncio.wrap_future(core.opened))
        except BaseException:
            await self._release(core)
            raise
        core.join(self.signals, asyncio.get_running_loop())
        self._core = core

    async def close(self) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.leave(self.signals)
            await self._release(core)

    async def _release(self, core: Core) -> None:
        if sharing.release(core):
            await asyncio.shield(asyncio.wrap_future(core.closed))
            sharing.forget(core)

    async def _do(
        self, work: Callable[[Store], Any], unanswered: Callable[[Store, Any], None] | None = None
    ) -> Any:
        if self._core is None:
            raise Closed(f"{self._place.url}: the engine is not open")
        return await self._core.do(work, unanswered)

    async def insert(
        self, jobs: Sequence[Insertion], now: int | None = None, token: Token | None = None
    ) -> list[Enqueued]:
        answer: list[Enqueued] = await self._do(
            lambda store: store.insert(jobs, self._now(now)), _remember_inserts
        )
        return answer

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        raise ConfigError(
            f"connection={connection!r}: an object store has no transactions to join; "
            "leave connection out, or use sqlite:///"
        )

    async def claim(
        self, requests: Sequence[ClaimRequest], now: int | None = None, token: Token | None = None
    ) -> list[list[Job]]:
        answer: list[list[Job]] = await self._do(
            lambda store: store.claim(requests, self._now(now)), self._give_back
        )
        return answer

    async def insert_and_claim(
        self,
        jobs: Sequence[Insertion],
        requests: Sequence[ClaimRequest],
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        async def work(store: Store) -> tuple[list[Enqueued], list[list[Job]]]:
            at = self._now(now)
            enqueued = await store.insert(jobs, at)
            return enqueued, await store.claim(requests, at, lenient=True)

        def unanswered(store: Store, answer: tuple[list[Enqueued], list[list[Job]]]) -> None:
            _remember_inserts(store, answer[0])
            self._give_back(store, answer[1])

        answer: tuple[list[Enqueued], list[list[Job]]] = await self._do(work, unanswered)
        return answer

    def _give_back(self, store: Store, claimed: list[list[Job]]) -> None:
        """Nobody has learned of these claims: release them."""
        ops = [
            SettleOp(job.key, job.epoch, Transition.RELEASE, RetentionTimes())
            for jobs in claimed
            for job in jobs
        ]
        store.later(lambda: store.settle(ops, self._now(None)))

    async def settle(
        self, ops: Sequence[SettleOp], now: int | None = None, token: Token | None = None
    ) -> list[JobState | None]:
        def unanswered(store: Store, states: list[JobState | None]) -> None:
            store.remember(
                settled=[
                    ((op.key, op.epoch), state)
                    for op, state in zip(ops, states, strict=True)
                    if state is not None
                ]
            )

        answer: list[JobState | None] = await self._do(
            lambda store: store.settle(ops, self._now(now)), unanswered
        )
        return answer

    async def renew(
        self, renewals: Sequence[Renewal], now: int | None = None, token: Token | None = None
    ) -> list[Renewed]:
        def work(store: Store) -> list[Renewed]:
            at = self._now(now)
            return [store.renew(renewal, at) for renewal in renewals]

        answer: list[Renewed] = await self._do(work)
        return answer

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        def work(store: Store) -> None:
            for report in reports:
                store.record_progress(report)

        await self._do(work)

    async def cancel(
        self,
        keys: Sequence[bytes],
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> list[CancelOutcome]:
        answer: list[CancelOutcome] = await self._do(
            lambda store: store.cancel(keys, retention, self._now(now))
        )
        return answer

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        answer: list[tuple[bytes, int]] = await self._do(Store.cancel_requests)
        return answer

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        answer: list[Job | None] = await self._do(lambda store: listings.get(store, keys))
        return answer

    async def find(self, query: JobQuery) -> list[Job]:
        answer: list[Job] = await self._do(lambda store: listings.find(store, query))
        return answer

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        answer: list[Job] = await self._do(lambda store: listings.find_dead(store, queue, before, limit))
        return answer

    async def requeue(
        self, keys: Sequence[bytes], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        answer: list[bool] = await self._do(lambda store: store.requeue(keys, self._now(now)))
        return answer

    async def requeue_dead(
        self, queue: str, limit: int, now: int | None = None, token: Token | None = None
    ) -> int:
        answer: int = await self._do(lambda store: store.requeue_dead(queue, limit, self._now(now)))
        return answer

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        answer: int = await self._do(lambda store: store.purge_dead(queue, limit))
        return answer

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        answer: int = await self._do(lambda store: store.purge(keys))
        return answer

    async def reschedule(
        self, changes: Sequence[Reschedule], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        def work(store: Store) -> list[bool]:
            at = self._now(now)
            return [store.reschedule(change, at) for change in changes]

        answer: list[bool] = await self._do(work)
        return answer

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        answer: dict[str, QueueStats] = await self._do(lambda store: store.stats(queues))
        return answer

    async def position(self, key: bytes, limit: int) -> int:
        answer: int = await self._do(lambda store: store.live.position(key, limit))
        return answer

    async def kv_get(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        answer: list[bytes | None] = await self._do(
            lambda store: store.ledger.get_all([keys.kv(key) for key in wanted])
        )
        return answer

    async def kv_write(
        self, writes: Sequence[tuple[bytes, bytes | None]], token: Token | None = None
    ) -> None:
        await self._do(lambda store: store.kv_write(writes))

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        await self._do(lambda store: store.pause(queue, paused))

    async def paused(self) -> set[str]:
        answer: set[str] = await self._do(lambda store: set(store.ledger.paused))
        return answer

    async def promote(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        answer: tuple[int, int] = await self._do(
            lambda store: store.promote(limit, retention, self._now(now))
        )
        return answer

    async def next_due(self, now: int | None = None) -> int | None:
        answer: int | None = await self._do(lambda store: store.next_due(self._now(now)))
        return answer

    async def reap(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> int:
        answer: int = await self._do(lambda store: store.reap(limit, retention, self._now(now)))
        return answer

    async def reclaim(
        self,
        workers: Sequence[str],
        limit: int,
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> int:
        answer: int = await self._do(lambda store: store.reclaim(workers, limit, retention, self._now(now)))
        return answer

    async def sweep(self, limit: int, now: int | None = None, token: Token | None = None) -> int:
        answer: int = await self._do(lambda store: store.archive.sweep(limit, self._now(now)))
        return answer

    async def sweep_finished(
        self,
        state: JobState,
        age: int,
        after: bytes | None,
        limit: int,
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[int, bytes | None]:
        answer: tuple[int, bytes | None] = await self._do(
            lambda store: store.sweep_finished(state, age, after, limit, self._now(now))
        )
        return answer

    async def documents(self, kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        answer: tuple[int, list[Document]] = await self._do(
            lambda store: (self._now(now), store.documents.of(kind))
        )
        return answer

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        now: int | None = None,
        token: Token | None = None,
    ) -> bool:
        def unanswered(store: Store, written: bool) -> None:
            if written:
                store.documents.remember(writes, jobs)

        answer: bool = await self._do(
            lambda store: store.compare_and_set(writes, jobs, announce, self._now(now)), unanswered
        )
        return answer

    async def diagnose(self) -> list[Diagnostic]:
        return diagnose(self._place)


def _remember_inserts(store: Store, answers: list[Enqueued]) -> None:
    store.remember(enqueued=[answer.id for answer in answers if answer.created])
