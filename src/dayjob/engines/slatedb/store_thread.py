"""The thread that owns an open database, with its own event loop, on which every verb runs.

Calls from any number of brokers and event loops are applied one after the other, in memory. The calls that
arrive during a commit form the next one, so many calls share each flush. A call gets its reply, and its
topics are published, when its commit is durable.

A commit that is not durable in time fails its calls with ``Transient(commit_unknown=True)``. Their changes
stay, and their replies are kept: a repeated call with the same token gets the stored reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from slatedb import uniffi

from dayjob.engines.base import Token, Transient
from dayjob.engines.local import Claims, Subscribers
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.database import Database
from dayjob.engines.slatedb.opening import (
    check_layout,
    check_owner,
    load,
    migrate,
    next_owner,
    read_owner,
)
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.engines.slatedb.store import SlateStore
from dayjob.engines.slatedb.values import Owner
from dayjob.engines.slatedb.write_batch import WriteBatch
from dayjob.errors import Closed, DayjobError, EngineFenced, EngineUnavailable
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import Topic

_log = logging.getLogger("dayjob.engines.slatedb")

Reply = TypeVar("Reply")
Verb = Callable[[SlateStore], Coroutine[Any, Any, Any]]

_MAX_CALLS = 200
"""The largest number of calls in one commit."""

_MAX_COMMITS = 16
"""The largest number of commits that wait for their durability."""

_MAX_UNCONFIRMED = 10_000
"""The largest number of replies that are kept for repeated calls. The oldest are dropped."""

_WATCH_INTERVAL = 1.0
"""Seconds between checks for another process that has taken over."""


class Call(Struct, gc=True):
    """A verb to run, and the future of its caller, if there is one."""

    verb: Verb
    future: asyncio.Future[Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    token: Token | None = None
    claims: Claims[Any] | None = None


class Outcome(Struct):
    call: Call
    reply: Any
    error: Exception | None


class UnconfirmedReply(Struct):
    """The reply of a write that was applied, but not durable in time. ``number`` is the one of its token."""

    number: int
    reply: Any


class Commit(Struct):
    """Outcomes to deliver once ``durable`` is done."""

    outcomes: list[Outcome]
    topics: set[Topic]
    durable: asyncio.Future[None]
    deadline: float


class StoreThread:
    """One database of this process. ``opened`` and ``closed`` are done when it is."""

    def __init__(self, settings: SlateSettings, predecessor: Future[None] | None) -> None:
        self.settings = settings
        self.users = 0
        self.opened: Future[None] = Future()
        self.closed: Future[None] = Future()
        self.failure: DayjobError | None = None
        self.subscribers = Subscribers()
        self._predecessor = predecessor
        self._waiting: deque[Call] = deque()
        self._running: list[Call] = []
        self._commits: deque[Commit] = deque()
        self._unconfirmed: dict[tuple[bytes, int], UnconfirmedReply] = {}
        self._lock = Lock()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name="dayjob-slatedb", daemon=True)
        self._thread.start()

    # Called from any thread.

    async def run(
        self,
        verb: Callable[[SlateStore], Coroutine[Any, Any, Reply]],
        token: Token | None = None,
        claims: Claims[Reply] | None = None,
    ) -> Reply:
        """Return the reply of the verb once it is durable."""
        if self.failure is not None:
            raise self.failure
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        self._submit(Call(verb, future, loop, token, claims))
        return await future

    def _submit(self, call: Call) -> None:
        with self._lock:
            if self._closing or self._loop is None:
                raise self.failure or Closed(f"{self.settings.url}: the engine is closed")
            self._waiting.append(call)
            if len(self._waiting) == 1:
                with suppress(RuntimeError):  # The loop has died; ``_fail_calls`` fails this call too.
                    self._loop.call_soon_threadsafe(self._wake.set)

    def end(self) -> None:
        """Commit the calls so far, then close the database. ``closed`` is done afterwards."""
        with self._lock:
            self._closing = True
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake.set)

    # On the thread.

    def _run(self) -> None:
        if self._predecessor is not None:
            self._predecessor.result()
        try:
            asyncio.run(self._main())
        except BaseException as error:  # Callers must not wait indefinitely.
            _log.exception("the engine on %s failed", self.settings.url)
            self._fail(
                EngineUnavailable(f"{self.settings.url}: the engine failed ({error!r}): open it again")
            )
            self._fail_calls()
        finally:
            if not self.opened.done():
                self.opened.set_exception(self.failure or Closed(f"{self.settings.url}: it was not opened"))
            self.closed.set_result(None)

    def _fail_calls(self) -> None:
        """Fail the calls that are left."""
        with self._lock:
            self._closing = True
            calls = [*self._running, *self._waiting]
        calls += [outcome.call for commit in self._commits for outcome in commit.outcomes]
        self._deliver([Outcome(call, None, self.failure) for call in calls], set())

    async def _main(self) -> None:
        self._wake = asyncio.Event()
        self._delivering = asyncio.Event()
        self._written = asyncio.Event()
        self._delivered = asyncio.Event()
        self._latest: asyncio.Future[None] | None = None
        try:
            await self._open()
        except DayjobError as error:
            self.failure = error
            self.opened.set_exception(error)
            return
        tasks = [
            asyncio.create_task(work())
            for work in (self._flush, self._deliver_commits, self._beat, self._watch)
        ]
        with self._lock:
            self._loop = asyncio.get_running_loop()
        self.opened.set_result(None)
        try:
            await self._serve()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._shut()

    async def _open(self) -> None:
        settings = self.settings
        settings.check()
        await check_owner(settings)
        self._database = Database(settings, await settings.open_writer())
        try:
            # Another process may have migrated the database since ``check_owner``.
            version = await settings.opening(check_layout(self._database))
            self._write_batch = WriteBatch(self._database, self._publish)
            self._owner: Owner = next_owner(await settings.opening(read_owner(self._database)), settings)
            await migrate(self._write_batch, version)
            self._store = await load(self._write_batch, self._owner.session)
            self._write_batch.put(keys.LAYOUT_KEY, values.layout_value(keys.VERSION))
            await self._heartbeat()
            await settings.opening(self._make_durable())
        except BaseException:
            with suppress(Exception):
                await self._database.close()
            raise

    async def _shut(self) -> None:
        """Release the ownership, and close the database."""
        if self.failure is None:
            self._owner = replace(self._owner, closed=True)
            await self._heartbeat()
            try:
                async with asyncio.timeout(self.settings.timeout):
                    await self._make_durable()
            except (DayjobError, uniffi.Error, TimeoutError) as error:
                _log.warning("%s was not closed cleanly: %s", self.settings.url, error)
        with suppress(uniffi.Error, TimeoutError):
            async with asyncio.timeout(self.settings.timeout):
                await self._database.close()

    async def _make_durable(self) -> None:
        """Write the staged rows and wait for their durability. No other task writes meanwhile."""
        await self._publish()
        await self._database.flush()
        assert self._latest is not None
        await self._latest

    async def _heartbeat(self, _: SlateStore | None = None) -> None:
        self._owner = replace(self._owner, beat_us=SYSTEM.now())
        self._write_batch.put(keys.OWNER, values.owner_value(self._owner))

    async def _serve(self) -> None:
        while True:
            with self._lock:
                calls = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_CALLS))]
                more = bool(self._waiting)
                if not calls and self._closing:
                    break
            if not more:
                self._wake.clear()
                with self._lock:
                    if self._waiting:
                        self._wake.set()
            self._running = calls
            if calls:
                await self._commit([await self._perform(call) for call in calls])
            else:
                await self._wake.wait()
        while self._commits:
            self._delivered.clear()
            await self._delivered.wait()

    async def _perform(self, call: Call) -> Outcome:
        if self.failure is not None:
            return Outcome(call, None, self.failure)
        if call.token is not None and self._unconfirmed:
            kept = self._kept_reply(call.token)
            if kept is not None:
                return Outcome(call, kept.reply, None)
        try:
            await self._store.prepare()
            reply = await call.verb(self._store)
        except Exception as error:
            if isinstance(error, EngineFenced):
                self._fail(error)
            return Outcome(call, None, error)
        return Outcome(call, reply, None)

    def _kept_reply(self, token: Token) -> UnconfirmedReply | None:
        """Return the reply of an earlier try. A new write of the slot ends the tries of the last one."""
        slot = (token.client, token.slot)
        kept = self._unconfirmed.get(slot)
        if kept is not None and kept.number < token.number:
            del self._unconfirmed[slot]
        return kept if kept is not None and kept.number == token.number else None

    async def _publish(self) -> None:
        """Write the staged rows to the database. ``_latest`` is done when they are durable.

        If the write fails, memory has changes that the database lacks. The thread fails for good then.
        """
        try:
            handle = await self._database.write(self._write_batch.take())
        except DayjobError as error:
            self._fail(error)
            raise
        self._latest = asyncio.ensure_future(handle.await_durable())
        self._written.set()

    async def _commit(self, outcomes: list[Outcome]) -> None:
        topics = self._store.take_topics()
        with suppress(DayjobError):  # ``failure`` is set then.
            if self._write_batch.unsaved:
                await self._publish()
        if self.failure is not None:
            self._deliver([Outcome(outcome.call, None, self.failure) for outcome in outcomes], topics)
            return
        if self._latest is None or (self._latest.done() and not self._commits):
            self._deliver(outcomes, topics)
            return
        deadline = SYSTEM.elapsed() + self.settings.timeout
        self._commits.append(Commit(outcomes, topics, self._latest, deadline))
        self._delivering.set()
        while len(self._commits) >= _MAX_COMMITS:
            self._delivered.clear()
            await self._delivered.wait()

    async def _deliver_commits(self) -> None:
        """Deliver commit after commit, each when it is durable or has timed out."""
        while True:
            self._delivering.clear()
            while self._commits:
                commit = self._commits[0]
                if not commit.durable.done():
                    left = max(commit.deadline - SYSTEM.elapsed(), 0)
                    await asyncio.wait({commit.durable}, timeout=left)
                self._conclude(commit)
                self._commits.popleft()
                self._delivered.set()
            await self._delivering.wait()

    def _conclude(self, commit: Commit) -> None:
        if not commit.durable.done():
            self._time_out(commit)
            return
        error = commit.durable.exception()
        if error is not None:
            self._fail(
                self.settings.translated(error) if isinstance(error, uniffi.Error) else _unexpected(error)
            )
        if self.failure is not None:
            self._deliver([Outcome(outcome.call, None, self.failure) for outcome in commit.outcomes], set())
        else:
            self._deliver(commit.outcomes, commit.topics)

    def _time_out(self, commit: Commit) -> None:
        """Fail the calls of a commit that is not durable in time, and keep their replies."""
        error = Transient(
            f"{self.settings.url}: the store has not confirmed a write within {self.settings.timeout:g} s: "
            "the operation may be repeated",
            commit_unknown=True,
        )
        failed = []
        for outcome in commit.outcomes:
            if outcome.error is None:
                self._keep_reply(outcome.call, outcome.reply)
                outcome = Outcome(outcome.call, None, error)
            failed.append(outcome)
        self._deliver(failed, set())
        commit.durable.add_done_callback(lambda _: self.subscribers.publish(commit.topics))

    def _keep_reply(self, call: Call, reply: Any) -> None:
        """Keep the reply for a repeated call. Release its claims: a caller may never repeat the call."""
        claimed: list[Any] = [] if call.claims is None else call.claims(reply)
        self._store.release_later([job for jobs in claimed for job in jobs])
        if call.token is None or claimed is reply:
            return
        for jobs in claimed:
            jobs.clear()
        self._unconfirmed[call.token.client, call.token.slot] = UnconfirmedReply(call.token.number, reply)
        if len(self._unconfirmed) > _MAX_UNCONFIRMED:
            del self._unconfirmed[next(iter(self._unconfirmed))]

    def _deliver(self, outcomes: list[Outcome], topics: set[Topic]) -> None:
        """Deliver the outcomes on the event loops of their callers, then publish the topics."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.call.loop is not None:
                by_loop.setdefault(outcome.call.loop, []).append(outcome)
        for loop, some in by_loop.items():
            with suppress(RuntimeError):  # The event loop is closed, and with it the callers.
                loop.call_soon_threadsafe(_set_results, some)
        self.subscribers.publish(topics)

    def _fail(self, error: DayjobError) -> None:
        """Mark the database as unusable, and wake all listeners, so that their next call raises."""
        if self.failure is None:
            self.failure = error
            self.subscribers.publish_all()

    # In the background.

    async def _flush(self) -> None:
        """Flush the writes, at least ``flush_ms`` after the last flush.

        An idle queue flushes at once. A busy one flushes at most once per ``flush_ms``.
        """
        interval = self.settings.flush_ms / 1000
        begun = SYSTEM.elapsed() - interval
        while True:
            await self._written.wait()
            await SYSTEM.wait(asyncio.Event(), begun + interval - SYSTEM.elapsed())
            begun = SYSTEM.elapsed()
            self._written.clear()
            try:
                await self._database.flush()
            except DayjobError as error:
                if isinstance(error, EngineFenced):
                    self._fail(error)
                    return
                _log.warning("%s", error)

    async def _beat(self) -> None:
        """Write heartbeats, so that other hosts can see that the owner lives."""
        while self.failure is None:
            await SYSTEM.wait(asyncio.Event(), self.settings.beat)
            with suppress(DayjobError):
                self._submit(Call(self._heartbeat))

    async def _watch(self) -> None:
        """Detect a take-over also while nothing is written."""
        while self.failure is None:
            await SYSTEM.wait(asyncio.Event(), _WATCH_INTERVAL)
            if self._database.fenced:
                self._fail(self.settings.fenced())


def _unexpected(error: BaseException) -> EngineUnavailable:
    return EngineUnavailable(f"a write could not be confirmed ({error!r}): open the engine again")


def _set_results(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        future = outcome.call.future
        if future is not None and not future.done():
            if outcome.error is None:
                future.set_result(outcome.reply)
            else:
                future.set_exception(outcome.error)
