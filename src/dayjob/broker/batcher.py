"""Group commit: concurrent single calls share one trip to the engine.

While one batch is on its way, the calls that arrive form the next. A caller that is cancelled takes
nobody with it, and an item that fails on its own account fails alone. One that is held up by somebody's
open transaction is tried by itself for a while, and holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from dayjob.engines.base import BATCH, Contended
from dayjob.errors import Closed, EngineFenced, EngineUnavailable
from dayjob.runtime.clock import SYSTEM

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_STORAGE_ERRORS = (EngineUnavailable, EngineFenced, Closed)

PATIENCE = 5.0
"""Seconds for which an item is tried that somebody's open transaction holds up."""

_PAUSE = 0.05


class Batcher(Generic[Item, Answer]):
    """Collects the calls of one verb.

    ``weigh`` tells how many jobs an item stands for, to keep a batch within ``BATCH``. ``undelivered``
    gets the answers whose callers are gone; with it, an item whose caller is gone before the batch
    leaves is dropped.
    """

    def __init__(
        self,
        commit: Callable[[list[Item]], Awaitable[Sequence[Answer]]],
        *,
        weigh: Callable[[Item], int] = lambda item: 1,
        undelivered: Callable[[Answer], None] | None = None,
    ) -> None:
        self._commit = commit
        self._weigh = weigh
        self._undelivered = undelivered
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._contended: set[asyncio.Task[None]] = set()
        self._runner: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        try:
            return await future
        except asyncio.CancelledError:
            answered = future.done() and not future.cancelled() and future.exception() is None
            if answered and self._undelivered is not None:
                self._undelivered(future.result())
            raise

    async def drain(self) -> None:
        """Wait until everything submitted has been answered."""
        while self._runner is not None or self._contended:
            await asyncio.wait({*self._contended, *([self._runner] if self._runner is not None else [])})

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                if batch:
                    await self._answer(batch)
        finally:
            self._runner = None

    def _take(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        weight = 0
        while self._waiting:
            item, future = self._waiting[0]
            weight += self._weigh(item)
            if batch and weight > BATCH:
                break
            self._waiting.popleft()
            if self._undelivered is None or not future.cancelled():
                batch.append((item, future))
        return batch

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._commit([item for item, _ in batch])
        except Contended:
            for one in batch:
                task = asyncio.get_running_loop().create_task(self._answer_contended(one))
                self._contended.add(task)
                task.add_done_callback(self._contended.discard)
        except _STORAGE_ERRORS as error:
            for _, future in batch:
                _fail(future, error)
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0][1], error)
            else:
                for one in batch:
                    await self._answer([one])
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
                elif self._undelivered is not None:
                    self._undelivered(answer)

    async def _answer_contended(self, one: tuple[Item, asyncio.Future[Answer]]) -> None:
        """Try one item of a batch that was held up, by itself, for a while: others don't wait for it."""
        item, future = one
        deadline = SYSTEM.elapsed() + PATIENCE
        while not future.done():
            try:
                (answer,) = await self._commit([item])
            except Contended as error:
                if SYSTEM.elapsed() >= deadline:
                    return _fail(future, error)
                await SYSTEM.wait(asyncio.Event(), _PAUSE)
            except Exception as error:
                return _fail(future, error)
            else:
                return None if future.done() else future.set_result(answer)
        return None


def _fail(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
