"""The facade of the memory, SQLite and SlateDB engines: runs verbs on a store and publishes their topics."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Generic, TypeVar

from dayjob.engines import verbs
from dayjob.engines.base import (
    ClaimRequest,
    Death,
    Document,
    DocumentWrite,
    Engine,
    Insertion,
    JobQuery,
    KvWrite,
    Progress,
    Renewal,
    Renewed,
    Reply,
    Reschedule,
    SettleOp,
    Token,
    claim_key,
)
from dayjob.engines.store import Store
from dayjob.errors import ConfigError
from dayjob.model.job import CancelOutcome, EndedJob, Enqueued, Job, JobState, QueueStats
from dayjob.model.limits import LimitInfo
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.signals import Signals, Topic

StoreType = TypeVar("StoreType", bound=Store)
Verb = Callable[[StoreType], Coroutine[Any, Any, Reply]]
TimedVerb = Callable[[StoreType, int], Coroutine[Any, Any, Reply]]
Claims = Callable[[Reply], list[list[Job]]]


class Subscribers:
    """The engines that share a store, each with the event loop that its signals are published on."""

    def __init__(self) -> None:
        self._loops: dict[Signals, asyncio.AbstractEventLoop] = {}
        self._only: Signals | None = None
        self._lock = Lock()

    def add(self, signals: Signals) -> None:
        with self._lock:
            self._loops[signals] = asyncio.get_running_loop()
            self._only = signals if len(self._loops) == 1 else None

    def remove(self, signals: Signals) -> None:
        with self._lock:
            self._loops.pop(signals, None)
            self._only = next(iter(self._loops)) if len(self._loops) == 1 else None

    def publish(self, topics: Iterable[Topic], caller: Signals | None = None) -> None:
        """Publish to all subscribers. ``caller`` is the one on the running event loop."""
        if not topics:
            return
        if caller is not None and caller is self._only:
            caller.publish(topics)
        else:
            self._call(lambda signals: signals.publish(topics), caller)

    def publish_all(self) -> None:
        self._call(Signals.publish_all)

    def _call(self, publish: Callable[[Signals], None], caller: Signals | None = None) -> None:
        with self._lock:
            subscribed = list(self._loops.items())
        for signals, loop in subscribed:
            if signals is caller:
                publish(signals)
            else:
                with suppress(RuntimeError):  # The event loop is closed, and with it the engine.
                    loop.call_soon_threadsafe(publish, signals)


class LocalEngine(Engine, Generic[StoreType]):
    """The verbs of ``engines.base.Engine``, run on a store in the engine's own way, but not its opening.

    ``_write`` runs a verb and publishes its topics after the commit. ``_read`` runs one that changes nothing.
    """

    def __init__(self, clock: Clock, timeout: float = 0.0) -> None:
        super().__init__(timeout)
        self._clock = clock

    @abstractmethod
    async def _write(
        self, verb: Verb[StoreType, Reply], token: Token | None = None, claims: Claims[Reply] | None = None
    ) -> Reply:
        """Run the verb. ``claims`` returns the claimed jobs in its reply, for an engine that may lose it."""

    async def _read(self, verb: Verb[StoreType, Reply]) -> Reply:
        return await self._write(verb)

    async def insert_tx(self, connection: Any, jobs: Sequence[Insertion]) -> list[Enqueued]:
        raise ConfigError(
            f"connection={connection!r}: this storage has no transactions to join; leave connection out, "
            "or use sqlite:///"
        )

    def _write_at(
        self, verb: TimedVerb[StoreType, Reply], token: Token | None, claims: Claims[Reply] | None = None
    ) -> Coroutine[Any, Any, Reply]:
        return self._write(self._at_time(verb), token, claims)

    async def _duty(self, verb: TimedVerb[StoreType, Reply], token: Token | None, idle: Reply) -> Reply:
        """Run the verb of a duty. ``idle`` is its reply without work."""
        return await self._write_at(verb, token)

    def _at_time(self, verb: TimedVerb[StoreType, Reply]) -> Verb[StoreType, Reply]:
        """Return the verb with the time: that of the system when it runs, or that of an injected clock now.

        It may have to wait for its turn.
        """
        if self._clock is SYSTEM:
            return lambda store: verb(store, SYSTEM.now())
        now = self._clock.now()
        return lambda store: verb(store, now)

    # Verbs of every job return the coroutine of ``_write``: another one around it would cost time.

    def insert(
        self, jobs: Sequence[Insertion], token: Token | None = None
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        return self._write_at(lambda store, now: verbs.insert(store, now, jobs), token)

    def claim(
        self, requests: Sequence[ClaimRequest], token: Token | None = None
    ) -> Coroutine[Any, Any, list[list[Job]]]:
        return self._write_at(
            lambda store, now: verbs.claim(store, now, requests, claim_key(token), self.ended),
            token,
            lambda reply: reply,
        )

    async def insert_and_claim(
        self, jobs: Sequence[Insertion], requests: Sequence[ClaimRequest], token: Token | None = None
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        async def insert_then_claim(store: StoreType, now: int) -> tuple[list[Enqueued], list[list[Job]]]:
            enqueued = await verbs.insert(store, now, jobs)
            return enqueued, await verbs.claim(store, now, requests, claim_key(token), self.ended)

        return await self._write_at(insert_then_claim, token, lambda reply: reply[1])

    def wake_others(self, queues: Sequence[str]) -> None:
        """Without effect: a commit wakes every waiting claim."""

    def settle(
        self, ops: Sequence[SettleOp], token: Token | None = None
    ) -> Coroutine[Any, Any, list[JobState | None]]:
        return self._write_at(lambda store, now: verbs.settle(store, now, ops, self.skipped), token)

    async def renew(self, renewals: Sequence[Renewal], token: Token | None = None) -> list[Renewed]:
        return await self._write_at(lambda store, now: verbs.renew(store, now, renewals), token)

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        await self._write(lambda store: verbs.record_progress(store, reports), token)

    async def cancel(self, keys: Sequence[bytes], token: Token | None = None) -> list[CancelOutcome]:
        outcomes, ended = await self._write_at(
            lambda store, now: verbs.cancel(store, now, keys, self.retention), token
        )
        self.ended.extend(ended)
        return outcomes

    async def requeue(self, keys: Sequence[bytes], token: Token | None = None) -> list[bool]:
        replies, ended = await self._write_at(lambda store, now: verbs.requeue(store, now, keys), token)
        self.ended.extend(ended)
        return replies

    async def requeue_dead(self, queue: str, limit: int, token: Token | None = None) -> int:
        _, ended = await self._write_at(
            lambda store, now: verbs.requeue_dead(store, now, queue, limit), token
        )
        self.ended.extend(ended)
        return len(ended)

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        return await self._write(lambda store: verbs.purge_dead(store, queue, limit), token)

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        return await self._write(lambda store: verbs.purge(store, keys), token)

    async def reschedule(self, changes: Sequence[Reschedule], token: Token | None = None) -> list[bool]:
        return await self._write_at(lambda store, now: verbs.reschedule(store, now, changes), token)

    async def kv_write(self, writes: Sequence[KvWrite], token: Token | None = None) -> None:
        async def write(store: StoreType) -> None:
            store.kv_write(writes)

        await self._write(write, token)

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        await self._write(lambda store: verbs.pause(store, queue, paused), token)

    async def set_limit(self, name: str, value: bytes | None, token: Token | None = None) -> int:
        return await self._write_at(lambda store, now: verbs.set_limit(store, now, name, value), token)

    async def promote(self, limit: int, token: Token | None = None) -> tuple[int, list[EndedJob]]:
        return await self._duty(
            lambda store, now: verbs.promote(store, now, limit, self.retention), token, (0, [])
        )

    async def reap(
        self, limit: int, expired_by: int | None = None, token: Token | None = None
    ) -> list[EndedJob]:
        return await self._duty(
            lambda store, now: verbs.reap(store, now, limit, self.retention, expired_by), token, []
        )

    async def reclaim(self, workers: Sequence[str], limit: int, token: Token | None = None) -> list[EndedJob]:
        return await self._duty(
            lambda store, now: verbs.reclaim(store, now, workers, limit, self.retention), token, []
        )

    async def sweep(
        self, limit: int, over_by: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        return await self._duty(
            lambda store, now: verbs.sweep(store, now if over_by is None else over_by, limit), token, (0, 0)
        )

    async def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, token: Token | None = None
    ) -> tuple[int, bytes | None]:
        return await self._write_at(
            lambda store, now: verbs.sweep_finished(store, now, state, age, after, limit), token
        )

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        token: Token | None = None,
    ) -> bool:
        return await self._write_at(
            lambda store, now: verbs.compare_and_set(store, now, writes, jobs, announce, self.skipped), token
        )

    # Reads.

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        return await self._read(lambda store: store.get(keys))

    async def find(self, query: JobQuery) -> list[Job]:
        return await self._read(lambda store: store.find(query))

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]:
        return await self._read(lambda store: store.find_dead(queue, before, limit))

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        return await self._read(lambda store: store.cancel_requests())

    async def position(self, key: bytes, limit: int) -> int:
        return await self._read(lambda store: store.position(key, limit))

    async def stats(self) -> dict[str, QueueStats]:
        return dict(sorted((await self._read(lambda store: store.stats())).items()))

    async def pending_queues(self) -> list[str]:
        return [name for name, counts in (await self.stats()).items() if counts.pending]

    async def paused(self) -> set[str]:
        return await self._read(lambda store: store.paused())

    async def next_due(self) -> int | None:
        return await self._read(self._at_time(verbs.next_due))

    async def limits(self) -> list[LimitInfo]:
        return await self._read(verbs.limits)

    async def bucket_due(self, name: str) -> int | None:
        async def read(store: StoreType) -> int | None:
            bucket = store.bucket(name)
            return None if bucket is None else bucket.due

        return await self._read(read)

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._read(lambda store: store.kv_get(keys))

    async def documents(self, kind: str) -> tuple[int, list[Document]]:
        """The time is read before the documents, so that a delay between them ages no document."""

        async def read(store: StoreType, now: int) -> tuple[int, list[Document]]:
            return now, await store.documents(kind)

        return await self._read(self._at_time(read))
