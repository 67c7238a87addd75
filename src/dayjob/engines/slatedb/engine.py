"""The SlateDB engine: each verb runs on the thread that all engines of a database in this process share."""

from __future__ import annotations

import asyncio

from dayjob.engines.base import Capabilities, Diagnostic, Reply, Token
from dayjob.engines.local import Claims, LocalEngine, Verb
from dayjob.engines.slatedb import handles
from dayjob.engines.slatedb.keys import VERSION
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.engines.slatedb.store import SlateStore
from dayjob.engines.slatedb.store_thread import StoreThread
from dayjob.errors import Closed, ConfigError, EngineFenced, EngineUnavailable
from dayjob.runtime.clock import Clock

CAPABILITIES = Capabilities(persistent=True, knows_orphans=True, concurrent_commits=True)


class SlateEngine(LocalEngine[SlateStore]):
    """Jobs in an object store.

    A thread that has failed is replaced with the next call: the database is opened again, unless another
    process has taken it over. Claims survive that.
    """

    capabilities = CAPABILITIES

    def __init__(self, settings: SlateSettings, clock: Clock) -> None:
        super().__init__(clock, settings.timeout)
        self.settings = settings
        self._thread: StoreThread | None = None
        self._reopening: asyncio.Task[StoreThread] | None = None

    async def open(self) -> None:
        self._thread = await self._acquire()

    async def close(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.subscribers.remove(self.signals)
            await self._release(thread)

    async def _acquire(self, *, again: bool = False) -> StoreThread:
        thread = handles.acquire(self.settings, again=again)
        try:
            await asyncio.shield(asyncio.wrap_future(thread.opened))
        except BaseException:
            await self._release(thread)
            raise
        thread.subscribers.add(self.signals)
        return thread

    async def _release(self, thread: StoreThread) -> None:
        if handles.release(thread):
            await asyncio.shield(asyncio.wrap_future(thread.closed))
            handles.forget(thread)

    async def _reopen(self, failed: StoreThread) -> StoreThread:
        """Replace the failed thread. A refusal of the store is reported as unavailable: it may pass."""
        try:
            thread = self._thread = await self._acquire(again=True)
        except EngineFenced as error:
            failed.failure = error
            raise
        except ConfigError as error:
            raise EngineUnavailable(str(error)) from error
        failed.subscribers.remove(self.signals)
        await self._release(failed)
        self.signals.publish_all()
        return thread

    async def _usable(self, thread: StoreThread) -> StoreThread:
        """Return the thread, or its successor if it has failed. All callers wait for the same one."""
        if isinstance(thread.failure, EngineFenced):
            return thread
        if self._reopening is None or self._reopening.done():
            self._reopening = asyncio.ensure_future(self._reopen(thread))
        return await asyncio.shield(self._reopening)

    async def _write(
        self, verb: Verb[SlateStore, Reply], token: Token | None = None, claims: Claims[Reply] | None = None
    ) -> Reply:
        thread = self._thread
        if thread is None:
            raise Closed(f"{self.settings.url}: the engine is not open")
        if thread.failure is not None:
            thread = await self._usable(thread)
        return await thread.run(verb, token, claims)

    async def diagnose(self) -> list[Diagnostic]:
        return diagnose(self.settings)


def diagnose(settings: SlateSettings) -> list[Diagnostic]:
    text = "accepted jobs are in the bucket"
    if settings.local:
        text = "jobs survive a kill of the process, but not a power cut: file:// does not sync its writes"
    return [
        Diagnostic("layout", "ok", f"version {VERSION} at {settings.url.partition('?')[0]}"),
        Diagnostic("durability", "ok", text),
    ]
