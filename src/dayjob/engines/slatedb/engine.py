"""The SlateDB engine: each verb runs on the thread that all engines of a database in this process share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from dayjob.engines.base import Capabilities, Diagnostic, Insertion, Token
from dayjob.engines.local import Claims, LocalEngine
from dayjob.engines.slatedb import handles
from dayjob.engines.slatedb.diagnosis import diagnose
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.engines.slatedb.store import SlateStore
from dayjob.engines.slatedb.store_thread import StoreThread
from dayjob.errors import Closed, ConfigError
from dayjob.model.job import Enqueued
from dayjob.runtime.clock import Clock

Reply = TypeVar("Reply")

CAPABILITIES = Capabilities(
    persistent=True,
    multi_process=False,
    transactional_enqueue=False,
    knows_orphans=True,
    stores_replies=False,
)


class SlateEngine(LocalEngine[SlateStore]):
    """Jobs in an object store."""

    capabilities = CAPABILITIES

    def __init__(self, settings: SlateSettings, clock: Clock) -> None:
        super().__init__(clock, settings.timeout)
        self.settings = settings
        self._thread: StoreThread | None = None

    async def open(self) -> None:
        thread = handles.acquire(self.settings)
        try:
            await asyncio.shield(asyncio.wrap_future(thread.opened))
        except BaseException:
            await self._release(thread)
            raise
        thread.subscribers.add(self.signals)
        self._thread = thread

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.subscribers.remove(self.signals)
            await self._release(thread)

    async def _release(self, thread: StoreThread) -> None:
        if handles.release(thread):
            await asyncio.shield(asyncio.wrap_future(thread.closed))
            handles.forget(thread)

    async def _write(
        self,
        verb: Callable[[SlateStore], Coroutine[Any, Any, Reply]],
        token: Token | None = None,
        claims: Claims[Reply] | None = None,
    ) -> Reply:
        if self._thread is None:
            raise Closed(f"{self.settings.url}: the engine is not open")
        return await self._thread.run(verb, token, claims)

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        raise ConfigError(
            f"connection={connection!r}: an object store has no transactions to join; "
            "leave connection out, or use sqlite:///"
        )

    async def diagnose(self) -> list[Diagnostic]:
        return diagnose(self.settings)
