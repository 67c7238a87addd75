"""Group commit: concurrent items share one round trip to the storage.

While one batch is under way, the items that arrive form the next, in their order. A batch is bounded by
the number of jobs and by their bytes. An item above the limit forms its own batch. A refused item does not
fail the rest of its batch. If another client's open transaction locks an item, each item of its batch is
committed separately, so that the locked item does not delay the others. Few of them are tried at a time.

In an outage, an item that has waited for its whole timeout fails with the error of the last try. It gets no
try of its own, so the wait does not grow with the number of batches ahead.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from math import inf
from typing import Generic, TypeVar

from dayjob.engines.base import BATCH, BATCH_BYTES, Contended, Insertion, SettleOp
from dayjob.errors import Closed, EngineFenced, EngineUnavailable
from dayjob.model.settlement import Settlement
from dayjob.runtime.clock import SYSTEM

Item = TypeVar("Item")
Reply = TypeVar("Reply")

Call = tuple[Item, asyncio.Future[Reply], float]
"""An item, the future of its caller, and the time of the call."""

Weight = tuple[int, int]
"""Jobs and bytes."""

_STORAGE_ERRORS = (EngineUnavailable, EngineFenced, Closed)

CONTENDED_FOR = 5.0
"""Seconds for which a call that is ``Contended`` is tried again."""

_PAUSE = 0.05

_CONTENDED_AT_ONCE = 2
"""Contended calls of one verb that are tried at the same time. Each occupies a connection while it waits."""


class Batcher(Generic[Item, Reply]):
    """Commits items in batches, one batch at a time.

    ``deliver`` gets a batch and its replies, ``fail`` a batch and its error. ``weigh`` returns the weight of
    items. A contended item is tried for ``contended_for`` seconds, or until it is ``abandoned``. At most
    ``contended_at_once`` are tried at a time. With ``drop_abandoned``, an item that is abandoned before its
    batch is sent is dropped. ``overdue`` returns whether an item has waited for its timeout. While the
    storage is unavailable, an overdue item fails without a try.
    """

    def __init__(
        self,
        commit: Callable[[list[Item]], Awaitable[Sequence[Reply]]],
        deliver: Callable[[list[Item], Sequence[Reply]], None],
        fail: Callable[[list[Item], BaseException], None],
        *,
        weigh: Callable[[Sequence[Item]], Weight],
        contended_for: float = inf,
        contended_at_once: int = sys.maxsize,
        abandoned: Callable[[Item], bool] = lambda item: False,
        drop_abandoned: bool = False,
        overdue: Callable[[Item], bool] = lambda item: False,
    ) -> None:
        self._commit = commit
        self._deliver = deliver
        self._fail = fail
        self._weigh = weigh
        self._contended_for = contended_for
        self._contended_share = asyncio.Semaphore(contended_at_once)
        self._abandoned = abandoned
        self._drop_abandoned = drop_abandoned
        self._overdue = overdue
        self._outage: EngineUnavailable | None = None
        """The error of the last item that was committed separately, if the storage was unavailable."""
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Item] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()

    def put(self, item: Item) -> None:
        self._waiting.append(item)
        if self._runner is None or self._runner.done():
            self._runner = self._loop.create_task(self._run())

    def put_alone(self, item: Item, *, contended: bool = False) -> None:
        """Commit the item separately. It may wait for locks without delaying other items."""
        task = self._loop.create_task(self._commit_alone(item, contended))
        self._alone.add(task)
        task.add_done_callback(partial(self._end_alone, item))

    def _end_alone(self, item: Item, task: asyncio.Task[None]) -> None:
        self._alone.discard(task)
        if task.cancelled():
            self._fail([item], asyncio.CancelledError())

    async def drain(self) -> None:
        """Wait until every item has been delivered or has failed."""
        while True:
            running = self._runner is not None and not self._runner.done()
            if self._waiting and not running:  # The last runner was cancelled, maybe before its first step.
                self._runner = self._loop.create_task(self._run())
                running = True
            tasks = {*self._alone, *([self._runner] if running and self._runner is not None else [])}
            if not tasks:
                return
            await asyncio.wait(tasks)

    def abort(self) -> None:
        """Stop without the replies to the batches under way."""
        for task in (*self._alone, self._runner):
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        refused: deque[Item] = deque()
        """The items of refused batches. Each is sent as a batch of its own."""
        try:
            while refused or self._waiting:
                batch = [refused.popleft()] if refused else self._take()
                if not batch:
                    continue
                try:
                    replies = await self._commit(batch)
                except Contended:
                    for item in batch:
                        self.put_alone(item, contended=True)
                except _STORAGE_ERRORS as error:
                    overdue = [*self._take_overdue(refused), *self._take_overdue(self._waiting)]
                    self._fail([*batch, *overdue], error)
                except Exception as error:
                    if len(batch) == 1:
                        self._fail(batch, error)
                    else:
                        refused.extend(batch)
                except BaseException as error:
                    self._fail([*batch, *refused], error)
                    raise
                else:
                    self._deliver(batch, replies)
        finally:
            self._runner = None

    def _take(self) -> list[Item]:
        """Remove and return the items of the next batch. It is empty if all of them were abandoned."""
        waiting = self._waiting
        batch = list(islice(waiting, BATCH))
        if len(batch) > 1 and not _fits(self._weigh(batch)):
            batch = batch[: self._fitting(batch)]
        if len(batch) == len(waiting):
            waiting.clear()
        else:
            for _ in batch:
                waiting.popleft()
        if self._drop_abandoned:
            batch = [item for item in batch if not self._abandoned(item)]
        return batch

    def _fitting(self, items: Sequence[Item]) -> int:
        """Return how many of the items fit into a batch, at least one."""
        jobs = size = 0
        for count, item in enumerate(items):
            more_jobs, more_bytes = self._weigh((item,))
            jobs += more_jobs
            size += more_bytes
            if count and not _fits((jobs, size)):
                return count
        return len(items)

    def _take_overdue(self, waiting: deque[Item]) -> Iterator[Item]:
        while waiting and self._overdue(waiting[0]):
            yield waiting.popleft()

    async def _commit_alone(self, item: Item, contended: bool) -> None:
        deadline = SYSTEM.elapsed() + self._contended_for
        while not self._abandoned(item):
            try:
                async with self._contended_share if contended else nullcontext():
                    if self._outage is not None and self._overdue(item):
                        raise self._outage
                    replies = await self._commit([item])
            except Contended as error:
                contended, self._outage = True, None
                if SYSTEM.elapsed() >= deadline:
                    return self._fail([item], error)
                await SYSTEM.wait(asyncio.Event(), _PAUSE)
            except Exception as error:
                if isinstance(error, EngineUnavailable):
                    self._outage = error
                return self._fail([item], error)
            else:
                self._outage = None
                return self._deliver([item], replies)
        return None


class CallBatcher(Batcher[Call[Item, Reply], Reply]):
    """Batches the concurrent calls of one verb. Each call returns or raises for its own item.

    Cancelling one caller does not cancel the other calls of the batch. ``undelivered`` is called with each
    reply to a cancelled caller; with it, a call that is cancelled before its batch is sent is dropped.
    A call is overdue ``timeout`` seconds after it was made.
    """

    def __init__(
        self,
        commit: Callable[[list[Item]], Awaitable[Sequence[Reply]]],
        *,
        timeout: float,
        weigh: Callable[[Item], Weight] = lambda item: (1, 0),
        undelivered: Callable[[Reply], None] | None = None,
    ) -> None:
        super().__init__(
            lambda calls: commit([call[0] for call in calls]),
            self._answer,
            self._raise,
            weigh=lambda calls: _total([weigh(call[0]) for call in calls]),
            contended_for=CONTENDED_FOR,
            contended_at_once=_CONTENDED_AT_ONCE,
            abandoned=lambda call: call[1].done(),
            drop_abandoned=undelivered is not None,
            overdue=lambda call: SYSTEM.elapsed() - call[2] >= timeout,
        )
        self._undelivered = undelivered

    async def submit(self, item: Item) -> Reply:
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting.append((item, future, SYSTEM.elapsed()))
        if self._runner is None or self._runner.done():
            self._runner = self._loop.create_task(self._run())
        try:
            return await future
        except asyncio.CancelledError:
            answered = future.done() and not future.cancelled() and future.exception() is None
            if answered and self._undelivered is not None:
                self._undelivered(future.result())
            raise

    def _answer(self, calls: list[Call[Item, Reply]], replies: Sequence[Reply]) -> None:
        for (_, future, _), reply in zip(calls, replies, strict=True):
            if not future.done():
                future.set_result(reply)
            elif self._undelivered is not None:
                self._undelivered(reply)

    def _raise(self, calls: list[Call[Item, Reply]], error: BaseException) -> None:
        for _, future, _ in calls:
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            elif not future.done():
                future.set_exception(error)


def _fits(weight: Weight) -> bool:
    return weight[0] <= BATCH and weight[1] <= BATCH_BYTES


def _total(weights: Sequence[Weight]) -> Weight:
    return sum([jobs for jobs, _ in weights]), sum([size for _, size in weights])


_SIZED = (bytes, bytearray, str)


def insertions_weight(jobs: Sequence[Insertion]) -> Weight:
    size = 0
    for job in jobs:
        size += len(job.payload)
        if job.headers or job.kv:
            size += _bytes(job.headers) + _bytes(job.kv)
    return len(jobs), size


def ops_weight(ops: Sequence[SettleOp]) -> Weight:
    jobs, size = len(ops), 0
    for op in ops:
        if op.insert:
            more_jobs, more_bytes = insertions_weight(op.insert)
            jobs += more_jobs
            size += more_bytes
        if op.result is not None:
            size += len(op.result)
        elif op.error is not None:
            size += len(op.error)
        if op.kv:
            size += _bytes(op.kv)
    return jobs, size


def split_ops(ops: Sequence[SettleOp]) -> Iterator[tuple[SettleOp, ...]]:
    """Yield the settlements in parts of up to ``BATCH_BYTES``. One above the limit is a part of its own."""
    start = size = 0
    for at, op in enumerate(ops):
        more = ops_weight((op,))[1]
        if at > start and size + more > BATCH_BYTES:
            yield tuple(ops[start:at])
            start, size = at, 0
        size += more
    yield tuple(ops[start:])


def settlements_weight(settlements: Iterable[Settlement]) -> Weight:
    """Return the weight of settlements that are not validated yet: a value of a wrong type counts 0."""
    jobs = size = 0
    for settlement in settlements:
        jobs += 1
        result = settlement.result
        if result is not None:
            size += len(result) if type(result) is bytes else _size(result)
        elif settlement.error is not None:
            size += _size(settlement.error)
        if settlement.kv:
            size += _bytes(settlement.kv)
        if settlement.enqueue:
            for job in settlement.enqueue:
                jobs += 1
                size += _size(getattr(job, "payload", b""))
                size += _bytes(getattr(job, "headers", None)) + _bytes(getattr(job, "kv", None))
    return jobs, size


def _bytes(mapping: object) -> int:
    if not isinstance(mapping, Mapping):
        return 0
    return sum(_size(key) + _size(value) for key, value in mapping.items())


def _size(value: object) -> int:
    if isinstance(value, memoryview):
        return value.nbytes
    return len(value) if isinstance(value, _SIZED) else 0
