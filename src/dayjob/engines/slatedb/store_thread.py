"""The thread that owns an open database, with its own event loop, on which every verb runs.

Calls from any number of brokers and event loops are applied one after the other, in memory. The calls that
arrive during a commit form the next one, so many calls share each flush. A call gets its reply, and its
topics are published, when its commit is durable. A call that changed nothing waits for the last commit.

Every call ends within ``timeout`` seconds. A commit that is not durable by then fails its calls with
``Transient(commit_unknown=True)``. Their changes stay, and their replies are kept: a repeated call with the
same token gets the stored reply.

A commit that fails leaves changes in memory that the database lacks. The thread then serves no further call
and ends. ``SlateEngine`` opens the database again, which loads its state anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from threading import Lock, Thread
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from slatedb import uniffi

from dayjob.engines.base import Reply, Token, Transient
from dayjob.engines.local import Claims, Subscribers, Verb
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
from dayjob.engines.slatedb.store_probe import check_conditional_writes, find_refusal
from dayjob.engines.slatedb.values import Owner
from dayjob.engines.slatedb.write_batch import WriteBatch
from dayjob.errors import Closed, DayjobError, EngineFenced, EngineUnavailable
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import Topic

_log = logging.getLogger("dayjob.engines.slatedb")

_MAX_CALLS = 200
"""The largest number of calls in one commit."""

_MAX_COMMITS = 16
"""The largest number of commits that wait for their durability."""

_MAX_UNCONFIRMED = 10_000
"""The largest number of replies that are kept for repeated calls. The oldest are dropped."""

_WATCH_INTERVAL = 1.0
"""Seconds between checks whether SlateDB has stopped."""

_LOG_OBJECTS = 64
"""Flushes to a bucket after which a table is written. A crash leaves about as many log objects to replay.

Several processes that end after fewer flushes leave a longer log. The next process writes a table when it has
opened the database. In a folder log objects are cheap, and SlateDB's own limit of 4,096 applies.
"""

_SHORTEST_CLOSE = 1.0
"""Seconds that the last write and the end of SlateDB get at least."""


class Call(Struct, gc=True):
    """A verb to run, and the future of its caller, if there is one."""

    verb: Verb[SlateStore, Any]
    future: asyncio.Future[Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    token: Token | None = None
    claims: Claims[Any] | None = None
    deadline: float = 0.0


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
    wrote: bool
    """Whether calls of it have changed anything."""

    @property
    def deadline(self) -> float:
        """The time by which the first of its calls must end."""
        return min(outcome.call.deadline for outcome in self.outcomes)


class StoreThread:
    """One database of this process. ``opened`` and ``closed`` are done when it is.

    ``known_epoch`` is the epoch of the last writer of this process, if that was lost. The database is then
    opened only if no other writer has opened it since.
    """

    def __init__(
        self, settings: SlateSettings, predecessor: Future[None] | None, known_epoch: int | None = None
    ) -> None:
        self.settings = settings
        self.users = 0
        self.opened: Future[None] = Future()
        self.closed: Future[None] = Future()
        self.failure: DayjobError | None = None
        self.epoch = known_epoch
        """The largest epoch that this process may have opened the database with."""
        self.subscribers = Subscribers()
        self._predecessor = predecessor
        self._known_epoch = known_epoch
        self._waiting: deque[Call] = deque()
        self._running: list[Call] = []
        self._commits: deque[Commit] = deque()
        self._unconfirmed: dict[tuple[bytes, int], UnconfirmedReply] = {}
        self._lock = Lock()
        self._serves = False
        self._closing = False
        self._close_by = float("inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name="dayjob-slatedb", daemon=True)
        self._thread.start()

    # Called from any thread.

    async def run(
        self, verb: Verb[SlateStore, Reply], token: Token | None = None, claims: Claims[Reply] | None = None
    ) -> Reply:
        """Return the reply of the verb once it is durable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        self._submit(Call(verb, future, loop, token, claims, SYSTEM.elapsed() + self.settings.timeout))
        return await future

    def _submit(self, call: Call) -> None:
        with self._lock:
            if self.failure is not None:
                raise self._error()
            if self._closing or self._loop is None:
                raise Closed(f"{self.settings.url}: the engine is closed")
            self._waiting.append(call)
            if len(self._waiting) == 1:
                with suppress(RuntimeError):  # The loop has died; ``_fail_calls`` fails this call too.
                    self._loop.call_soon_threadsafe(self._wake.set)

    def end(self) -> None:
        """Commit the calls so far, then close the database. ``closed`` is done afterwards.

        An opening that is under way is cancelled.
        """
        with self._lock:
            if not self._closing:
                self._closing, self._close_by = True, SYSTEM.elapsed() + self.settings.timeout
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake.set)
                if not self.opened.done():
                    loop.call_soon_threadsafe(self._opening.cancel)

    def _error(self, *, applied: bool = False) -> DayjobError:
        """Return the error of a call to a thread that has failed. One that was not applied is repeated.

        Each caller gets an error of its own: a shared one would collect the tracebacks of all.
        """
        assert self.failure is not None
        if applied or isinstance(self.failure, EngineFenced):
            return copy(self.failure)
        return Transient(str(self.failure))

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
        finally:
            if self.failure is not None:
                self._fail_calls()
            if not self.opened.done():
                self.opened.set_exception(self.failure or Closed(f"{self.settings.url}: it was not opened"))
            self.closed.set_result(None)

    def _fail_calls(self) -> None:
        with self._lock:
            self._closing = True
            waiting = list(self._waiting)
            self._waiting.clear()
        while self._commits:
            self._conclude(self._commits.popleft())
        self._deliver([self._failed(Outcome(call, None, None)) for call in self._running], set())
        self._deliver([Outcome(call, None, self._error()) for call in waiting], set())

    async def _main(self) -> None:
        self._wake = asyncio.Event()
        self._delivering = asyncio.Event()
        self._written = asyncio.Event()
        self._delivered = asyncio.Event()
        self._applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._applied.set_result(None)
        self._durable = self._committed = self._applied
        self._search: asyncio.Task[None] | None = None
        self._table = self._applied
        self._opening = asyncio.ensure_future(self._open())
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._closing:
                self._opening.cancel()
        try:
            await self._opening
        except DayjobError as error:
            self.failure = error
            return
        except asyncio.CancelledError:
            return
        tasks = [
            asyncio.ensure_future(work())
            for work in (self._flush, self._deliver_commits, self._beat, self._watch)
        ]
        if not self.settings.local:
            self._table = asyncio.ensure_future(self._shorten_log())
        self._serves = True
        self.opened.set_result(None)
        try:
            await self._serve()
        except Exception as error:
            _log.exception("the engine on %s failed", self.settings.url)
            self._fail(EngineUnavailable(f"{self.settings.url}: the engine failed ({error!r})"))
        finally:
            self._serves = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.failure is not None:
                self._fail_calls()
            await self._shut()

    async def _open(self) -> None:
        settings = self.settings
        settings.check()
        if self._known_epoch is not None and await settings.read_epoch() > self._known_epoch:
            raise settings.fenced()
        owner = await check_owner(settings)
        if not settings.local and (owner is None or owner.tried_store != settings.store_id):
            await check_conditional_writes(settings)
        self.epoch = await settings.read_epoch() + 1
        self._database = Database(settings, await settings.open_writer())
        try:
            # Another process may have migrated the database since ``check_owner``.
            version = await check_layout(self._database)
            self._write_batch = WriteBatch(self._database, self._publish)
            self._owner: Owner = next_owner(await read_owner(self._database), settings)
            await migrate(self._write_batch, version)
            self._store = await load(self._write_batch, self._owner.session)
            self._write_batch.put(keys.LAYOUT_KEY, values.layout_value(keys.VERSION))
            await self._heartbeat()
            await settings.opening(self._make_durable())
        except BaseException:
            with suppress(Exception):
                async with asyncio.timeout(_SHORTEST_CLOSE):
                    await self._database.close()
            raise

    async def _shut(self) -> None:
        left, self._database.deadline = max(self._close_by - SYSTEM.elapsed(), _SHORTEST_CLOSE), None
        if self.failure is None:
            self._owner = replace(self._owner, closed=True)
            await self._heartbeat()
            try:
                async with asyncio.timeout(left):
                    await self._make_durable()
            except (DayjobError, TimeoutError) as error:
                reason = str(error) or "the store did not reply"
                _log.warning("%s was not closed cleanly: %s", self.settings.url, reason)
                left = _SHORTEST_CLOSE
        with suppress(uniffi.Error, TimeoutError):
            async with asyncio.timeout(_SHORTEST_CLOSE if self.failure else left):
                await self._database.close()

    async def _make_durable(self) -> None:
        """Write the staged rows and wait for their durability. No other task writes meanwhile."""
        await self._publish()
        await self._database.flush()
        await self._durable

    async def _heartbeat(self, _: SlateStore | None = None) -> None:
        self._stage_owner()

    def _stage_owner(self) -> None:
        self._owner = replace(self._owner, beat_us=SYSTEM.now())
        self._write_batch.put(keys.OWNER, values.encode(self._owner))

    async def _serve(self) -> None:
        while self.failure is None:
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
                outcomes = [outcome for call in calls if (outcome := await self._perform(call)) is not None]
                if outcomes:
                    await self._commit(outcomes)
            else:
                await self._wake.wait()
        while self._commits and self.failure is None:
            self._delivered.clear()
            await self._delivered.wait()

    async def _perform(self, call: Call) -> Outcome | None:
        """Run the verb. Return None if the call has ended without a commit: it is to be repeated."""
        if call.future is not None and call.future.cancelled():
            return None
        if call.token is not None and self._unconfirmed:
            kept = self._kept_reply(call.token)
            if kept is not None:
                return Outcome(call, kept.reply, None)
        self._database.deadline = call.deadline
        try:
            if self.failure is not None:
                raise self._error()
            await self._wait_applied()
            await self._store.prepare()
            return Outcome(call, await call.verb(self._store), None)
        except Exception as error:
            stopped = self._database.stopped
            if stopped is not None:
                self._fail(stopped)
            outcome = Outcome(call, None, error)
            if not isinstance(error, Transient):
                return outcome
            self._deliver([outcome], set())
            return None

    def _kept_reply(self, token: Token) -> UnconfirmedReply | None:
        """Return the reply of an earlier try. A new write of the slot ends the tries of the last one."""
        slot = (token.client, token.slot)
        kept = self._unconfirmed.get(slot)
        if kept is not None and kept.number < token.number:
            del self._unconfirmed[slot]
        return kept if kept is not None and kept.number == token.number else None

    async def _publish(self) -> None:
        """Write the staged rows to the database, so that a scan reads them."""
        self._write()
        await self._wait_applied()
        if self._durable.done():
            self._durable.result()

    async def _wait_applied(self) -> None:
        """Wait until reads see the last write. Raise if it is stalled, since too many are not durable."""
        if not self._applied.done():
            deadline = self._database.deadline
            left = self.settings.timeout if deadline is None else max(deadline - SYSTEM.elapsed(), 0)
            if not (await asyncio.wait({self._applied}, timeout=left))[0]:
                raise self.settings.timed_out(self._database.cause)

    def _write(self) -> None:
        """Start to write the staged rows. ``_applied`` is done when reads see them, then ``_durable``."""
        if not self.settings.local:
            self._stage_owner()  # So that the last log object has it, and opening reads the log once.
        before, self._applied = self._applied, asyncio.get_running_loop().create_future()
        self._durable = asyncio.ensure_future(
            self._write_rows(self._write_batch.take(), before, self._applied)
        )
        self._durable.add_done_callback(self._check_written)

    async def _write_rows(
        self, rows: Mapping[bytes, bytes | None], before: asyncio.Future[None], applied: asyncio.Future[None]
    ) -> None:
        try:
            await before
            handle = await self._database.write(rows)
        finally:
            if not applied.done():
                applied.set_result(None)
        self._written.set()
        await self._database.wait_durable(handle)

    def _check_written(self, durable: asyncio.Future[None]) -> bool:
        """Return whether the write has succeeded. Fail the thread if not, also if no call waits for it."""
        error = asyncio.CancelledError() if durable.cancelled() else durable.exception()
        if error is not None and self._serves and not durable.cancelled():
            if not isinstance(error, DayjobError):
                error = EngineUnavailable(f"{self.settings.url}: a write could not be confirmed ({error!r})")
            self._fail(error)
        return error is None

    async def _commit(self, outcomes: list[Outcome]) -> None:
        """Write the changes of the calls, and deliver their outcomes when the last write is durable."""
        if self._write_batch.unsaved:
            self._write()
        wrote, self._committed = self._durable is not self._committed, self._durable
        commit = Commit(outcomes, self._store.take_topics(), self._durable, wrote)
        if commit.durable.done() and not self._commits:
            self._conclude(commit)
            return
        self._commits.append(commit)
        self._delivering.set()
        while len(self._commits) >= _MAX_COMMITS and self.failure is None:
            self._delivered.clear()
            await self._delivered.wait()

    async def _deliver_commits(self) -> None:
        """Deliver commit after commit, each when it is durable or has timed out."""
        while True:
            self._delivering.clear()
            while self._commits:
                commit = self._commits[0]
                if not await self._is_durable(commit, share=0.5):
                    self._search_cause()
                    await self._is_durable(commit)
                self._conclude(commit)
                self._commits.popleft()
                self._delivered.set()
            await self._delivering.wait()

    async def _is_durable(self, commit: Commit, share: float = 1.0) -> bool:
        """Return whether the commit ends within that share of the time left to it."""
        left = (commit.deadline - SYSTEM.elapsed()) * share
        if left > 0 and not commit.durable.done():
            await asyncio.wait({commit.durable}, timeout=left)
        return commit.durable.done()

    def _conclude(self, commit: Commit) -> None:
        """Deliver the outcomes of a commit. None of them counts if the last write has failed."""
        if not commit.durable.done() and self.failure is None:
            self._time_out(commit)
            return
        durable = commit.durable.done() and self._check_written(commit.durable)
        if durable and (commit.wrote or self.failure is None):
            self._database.cause = None
            self._deliver(commit.outcomes, commit.topics)
        else:
            self._deliver([self._failed(outcome) for outcome in commit.outcomes], set())

    def _failed(self, outcome: Outcome) -> Outcome:
        """Return the outcome of a call whose commit has failed. A write may still have been stored."""
        if outcome.error is not None:
            return outcome
        return Outcome(outcome.call, None, self._error(applied=outcome.call.token is not None))

    def _time_out(self, commit: Commit) -> None:
        """Fail the calls of a commit that is not durable in time, and keep their replies."""
        failed = []
        for outcome in commit.outcomes:
            if outcome.error is None:
                self._keep_reply(outcome.call, outcome.reply)
                error = self.settings.timed_out(self._database.cause, commit_unknown=True)
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
                loop.call_soon_threadsafe(self._set_results, some)
        self.subscribers.publish(topics)

    def _set_results(self, outcomes: list[Outcome]) -> None:
        """Set the results, on the event loop of the callers. The reply to a cancelled call is kept."""
        for outcome in outcomes:
            future = outcome.call.future
            assert future is not None
            if future.done():
                if outcome.error is None and outcome.reply is not None and self._loop is not None:
                    with suppress(RuntimeError):  # The thread has ended.
                        self._loop.call_soon_threadsafe(self._keep_reply, outcome.call, outcome.reply)
            elif outcome.error is None:
                future.set_result(outcome.reply)
            else:
                future.set_exception(outcome.error)

    def _fail(self, error: DayjobError) -> None:
        """Mark the database as unusable, and wake all listeners, so that their next call opens it again."""
        if self.failure is None:
            self.failure = error
            _log.warning("%s", error)
            self._wake.set()
            self._delivered.set()
            self.subscribers.publish_all()

    # In the background.

    async def _flush(self) -> None:
        """Flush the writes, at least ``flush_ms`` after the last flush.

        An idle queue flushes at once. A busy one flushes at most once per ``flush_ms``.
        """
        interval = self.settings.flush_ms / 1000
        begun, flushes = SYSTEM.elapsed() - interval, 0
        while True:
            await self._written.wait()
            await SYSTEM.wait(asyncio.Event(), begun + interval - SYSTEM.elapsed())
            begun = SYSTEM.elapsed()
            self._written.clear()
            try:
                await self._database.flush()
            except DayjobError as error:  # SlateDB repeats transient failures itself, so this one is final.
                self._fail(error)
                return
            flushes += 1
            if flushes >= _LOG_OBJECTS and not self.settings.local and self._table.done():
                flushes, self._table = 0, asyncio.ensure_future(self._flush_table())

    async def _shorten_log(self) -> None:
        """Write a table if the log is long. Otherwise processes that end early make it longer and longer."""
        with suppress(DayjobError):
            if await self.settings.log_objects() > _LOG_OBJECTS:
                await self._flush_table()

    async def _flush_table(self) -> None:
        """Write a table. Opening then replays only the log objects that follow it."""
        with suppress(DayjobError):  # The next write fails, too.
            await self._database.flush(table=True)

    async def _beat(self) -> None:
        """Write heartbeats, so that other hosts can see that the owner lives."""
        while self.failure is None:
            await SYSTEM.wait(asyncio.Event(), self.settings.beat)
            with suppress(DayjobError):
                self._submit(Call(self._heartbeat, deadline=SYSTEM.elapsed() + self.settings.timeout))

    async def _watch(self) -> None:
        """Detect a take-over also while nothing is written."""
        while self.failure is None:
            await SYSTEM.wait(asyncio.Event(), _WATCH_INTERVAL)
            stopped = self._database.stopped
            if stopped is not None:
                self._fail(stopped)

    def _search_cause(self) -> None:
        """Search for the reason why the store does not reply, once at a time."""

        async def search() -> None:
            self._database.cause = await find_refusal(self.settings)

        if self._search is None or self._search.done():
            self._search = asyncio.ensure_future(search())
