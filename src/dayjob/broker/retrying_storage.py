"""The one retry loop around an engine.

A call that fails with ``Transient`` is repeated with growing pauses until ``engine.timeout`` seconds have
passed since its first try. A write keeps its token for all tries, so that the engine applies it once. Every
other error is final and raised at once, with one exception. ``Contended`` after a try with an unknown commit
is repeated, too: the lock may be that of the earlier try, whose commit is still under way.

A settlement whose outcome is still unknown at the end is kept as an ``UnconfirmedBatch``. The next
settlement of any of its claims first repeats the same batch with its token and uses its reply. The other
callers of the batch receive their replies when they retry. Without that, a claim that the first try had
settled would be reported as lost.

A claim whose outcome is still unknown is kept, too. ``lost_claims`` returns its jobs. No caller got them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dayjob.broker.clock_steps import ClockSteps
from dayjob.engines.base import (
    ClaimRequest,
    Contended,
    Document,
    DocumentWrite,
    Engine,
    Insertion,
    SettleOp,
    Token,
    Transient,
)
from dayjob.errors import EngineUnavailable
from dayjob.model.job import Job, JobState
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.ids import new_key

Reply = TypeVar("Reply")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0

_SHORTEST_TRY = 0.1
"""Seconds that a repeated try gets at least."""

_MAX_UNCONFIRMED = 1000
"""Unconfirmed batches that are kept. The oldest are dropped: their callers no longer retry."""

_MAX_LATE_REPLIES = 100_000
"""Replies of confirmed batches that are kept for callers that have not retried yet."""

_Settlement = tuple[bytes, bytes, str]
"""The claim and the transition that settles it."""


class Write(Struct, eq=False):
    """A write and the token of its next try, which is ``repeated`` once a commit is unknown."""

    token: Token


class UnconfirmedBatch(Write, eq=False):
    """Settlements as they were sent, with their token. They may have been applied."""

    ops: Sequence[SettleOp]


class RetryingStorage:
    """Calls one open engine, with retries.

    ``injected`` is the clock that the engine was created with, if any. ``clock`` measures the retries.
    """

    def __init__(self, engine: Engine, injected: Clock | None = None, clock: Clock = SYSTEM) -> None:
        self.engine = engine
        self._clock = clock
        self.steps = ClockSteps(injected or clock)
        self._client = new_key()
        self._key_prefix = self._client[8:]
        self._number = 0
        self._slots = 0
        self._free_slots: deque[int] = deque()
        self._unconfirmed: dict[UnconfirmedBatch, frozenset[_Settlement]] = {}
        self._late_replies: dict[_Settlement, JobState | None] = {}
        self.unconfirmed_claims: list[tuple[Sequence[ClaimRequest], Token]] = []
        """Claims whose outcome is unknown. ``lost_claims`` returns their jobs."""

    async def read(self, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the reply of a call that changes nothing."""
        started = self._clock.elapsed()
        try:
            return await call()
        except Transient as error:
            failure = error
        return await self._retry(call, failure, started)

    async def write(
        self, call: Callable[..., Awaitable[Reply]], keep: Callable[[Token], bool] | None = None
    ) -> Reply:
        """Return the reply of a call that is applied at most once, however often it is tried.

        The call gets the ``token``. ``keep`` gets the token of a call whose outcome is still unknown at the
        end. It returns whether the token is kept, and with it the slot.
        """
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self._slots
            self._slots += 1
        self._number += 1
        token = Token(self._key_prefix + self._number.to_bytes(8), self._client, slot, self._number)
        started = self._clock.elapsed()
        # A try that arrives late has a smaller number than the slot's next write and is refused. The slot of
        # a failed write is therefore used again first.
        free: Callable[[int], None] | None = self._free_slots.append
        try:
            try:
                reply = await call(token=token)
            except Transient as error:
                failure = error
            else:
                free = self._free_slots.appendleft
                return reply
            write = Write(token)
            try:
                reply = await self._retry(call, failure, started, write)
            except EngineUnavailable:
                if keep is not None and write.token.repeated and keep(write.token):
                    free = None
                raise
            free = self._free_slots.appendleft
            return reply
        finally:
            if free is not None:
                free(slot)

    # Claims.

    def claim(self, requests: Sequence[ClaimRequest]) -> Awaitable[list[list[Job]]]:
        def keep(token: Token) -> bool:
            if len(self.unconfirmed_claims) == _MAX_UNCONFIRMED:
                return False
            plain = [ClaimRequest(each.queues, each.limit, each.worker) for each in requests]
            self.unconfirmed_claims.append((plain, token))
            return True

        return self.write(partial(self.engine.claim, requests), keep)

    async def lost_claims(self) -> list[Job]:
        """Return the jobs of claims whose outcome was unknown, to be released. Each is returned once."""
        jobs: list[Job] = []
        while self.unconfirmed_claims:
            requests, token = self.unconfirmed_claims.pop(0)
            try:
                claimed = await self.engine.claim(requests, token=token)
            except BaseException as error:
                self.unconfirmed_claims.insert(0, (requests, token))
                if isinstance(error, Transient):
                    break  # The next claim tries again.
                raise
            self._free_slots.append(token.slot)
            jobs += chain.from_iterable(claimed)
        return jobs

    # Settlements.

    def settle(self, ops: Sequence[SettleOp], *, new: bool = False) -> Awaitable[list[JobState | None]]:
        """Settle claims. Those of an unconfirmed batch get its reply, unless all are ``new``."""
        if (self._unconfirmed or self._late_replies) and not new:
            return self._settle_unconfirmed(ops)

        def keep(token: Token) -> bool:
            self._unconfirmed[UnconfirmedBatch(token, ops)] = frozenset(map(_settlement, ops))
            if len(self._unconfirmed) > _MAX_UNCONFIRMED:
                self._drop(next(iter(self._unconfirmed)))
            return True

        return self.write(partial(self.engine.settle, ops), keep)

    async def _settle_unconfirmed(self, ops: Sequence[SettleOp]) -> list[JobState | None]:
        names = [_settlement(op) for op in ops]
        for batch in [batch for batch, sent in self._unconfirmed.items() if not sent.isdisjoint(names)]:
            await self._confirm(batch)
        late = {name: self._late_replies[name] for name in names if name in self._late_replies}
        new = [op for op, name in zip(ops, names, strict=True) if name not in late]
        states = iter(await self.settle(new, new=True) if new else ())
        for name in late:
            self._late_replies.pop(name, None)
        return [late[name] if name in late else next(states) for name in names]

    async def _confirm(self, batch: UnconfirmedBatch) -> None:
        """Send the batch again and store its reply for each caller. A claim's first settlement counts."""
        settle = partial(self.engine.settle, batch.ops)
        started = self._clock.elapsed()
        try:
            states = await settle(token=batch.token)
        except Transient as error:
            states = await self._retry(settle, error, started, batch)
        else:
            self.engine.signals.publish_all()
        if self._drop(batch):
            self.keep_replies(batch.ops, states)

    def keep_replies(self, ops: Sequence[SettleOp], states: Sequence[JobState | None]) -> None:
        """Keep the replies of settlements for callers that will repeat them."""
        for op, state in zip(ops, states, strict=True):
            self._late_replies.setdefault(_settlement(op), state)
        while len(self._late_replies) > _MAX_LATE_REPLIES:
            del self._late_replies[next(iter(self._late_replies))]

    def _drop(self, batch: UnconfirmedBatch) -> bool:
        if self._unconfirmed.pop(batch, None) is None:
            return False
        self._free_slots.append(batch.token.slot)
        return True

    # Documents.

    async def documents(self, kind: str) -> tuple[int, list[Document]]:
        """Return the engine's time and the documents of the kind."""
        asked = self.steps.elapsed()
        now, found = await self.read(partial(self.engine.documents, kind))
        self.steps.observe(now, asked)
        return now, found

    async def time(self) -> int:
        return (await self.documents("time"))[0]  # There are no documents of this kind.

    async def compare_and_set(
        self, writes: Sequence[DocumentWrite], jobs: Sequence[Insertion] = (), *, announce: bool = False
    ) -> bool:
        """Write the documents and insert the jobs, if all documents are as expected."""
        return await self.write(partial(self.engine.compare_and_set, writes, jobs, announce))

    # The loop.

    async def _retry(
        self,
        call: Callable[..., Awaitable[Reply]],
        failure: Transient,
        started: float,
        write: Write | None = None,
    ) -> Reply:
        """Return the reply of the first try that succeeds. Raise the first informative error at the timeout.

        The first try had the time limits of the engine. Further tries are cut off at the deadline.
        """
        deadline = started + self.engine.timeout
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        cause, commit_unknown = failure, failure.commit_unknown
        while True:
            if commit_unknown and write is not None:
                write.token = replace(write.token, repeated=True)
            left = deadline - self._clock.elapsed()
            if left <= 0:
                raise cause
            await backoff.wait(self._clock, at_most=left)
            try:
                async with asyncio.timeout(max(deadline - self._clock.elapsed(), _SHORTEST_TRY)):
                    reply = await (call() if write is None else call(token=write.token))
            except Transient as error:
                commit_unknown = error.commit_unknown
                if _is_timeout(cause) and not _is_timeout(error):
                    cause = error
            except Contended:
                if write is None or not write.token.repeated:
                    raise  # Nothing was changed.
            except TimeoutError:
                commit_unknown = True
            else:
                if write is not None and write.token.repeated:
                    # The reply of an earlier try was lost, and with it the topics to publish.
                    self.engine.signals.publish_all()
                return reply


def _settlement(op: SettleOp) -> _Settlement:
    return op.key, op.claim, op.transition


def _is_timeout(error: Transient) -> bool:
    """Whether the try was cut off by a time limit. Any other error is more informative."""
    return isinstance(error.__cause__, TimeoutError)
