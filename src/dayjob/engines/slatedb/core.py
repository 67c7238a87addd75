"""The one owner of an open database: a thread with an event loop of its own, on which every verb runs.

Calls from any number of brokers and event loops are applied one after the other at the speed of memory.
What has piled up while a commit was handed over forms the next one, so many calls share each flush; each
is answered, and what it changed announced, when its commit is durable. A commit that is not durable in
time fails its calls with ``EngineUnavailable``; what they changed stands, and is remembered, so that a
repetition gets the answer that was lost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from slatedb import uniffi

from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.database import Database
from dayjob.engines.slatedb.ledger import Ledger
from dayjob.engines.slatedb.loading import check_layout, load, may_open, migrate, next_owner, read_owner
from dayjob.engines.slatedb.place import Place
from dayjob.engines.slatedb.store import Store
from dayjob.engines.slatedb.values import Owner
from dayjob.errors import Closed, DayjobError, EngineFenced, EngineUnavailable
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import Signals, Topic

_log = logging.getLogger("dayjob.engines.slatedb")

Answer = TypeVar("Answer")
Work = Callable[[Store], Any]
"""A verb: takes the store; its answer, or a coroutine of it."""

_MOST = 200
"""How many calls share a commit at most."""

_IN_FLIGHT = 16
"""How many commits may wait for their durability before the next has to wait."""

_WATCH = 1.0
"""Seconds between looks whether another process has taken over."""


class Call(Struct, gc=True):
    """A verb that somebody waits for, on some event loop."""

    work: Work
    future: asyncio.Future[Any] | None
    loop: asyncio.AbstractEventLoop | None
    unanswered: Callable[[Store, Any], None] | None = None
    """What to do with an answer that comes too late."""


class Outcome(Struct):
    call: Call
    answer: Any
    error: Exception | None


class Commit(Struct):
    """Outcomes that may be told once ``durable`` is done."""

    outcomes: list[Outcome]
    topics: set[Topic]
    durable: asyncio.Future[None]
    deadline: float


class Core:
    """One database of this process. ``opened`` and ``closed`` are done when it is."""

    def __init__(self, place: Place, predecessor: Future[None] | None) -> None:
        self.place = place
        self.users = 0
        self.opened: Future[None] = Future()
        self.closed: Future[None] = Future()
        self.failure: DayjobError | None = None
        self._predecessor = predecessor
        self._waiting: deque[Call] = deque()
        self._served: list[Call] = []
        self._undelivered: deque[Commit] = deque()
        self._audience: dict[Signals, asyncio.AbstractEventLoop] = {}
        self._lock = Lock()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name="dayjob-slatedb", daemon=True)
        self._thread.start()

    # From any thread.

    def join(self, signals: Signals, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._audience[signals] = loop

    def leave(self, signals: Signals) -> None:
        with self._lock:
            self._audience.pop(signals, None)

    async def do(
        self, work: Callable[[Store], Any], unanswered: Callable[[Store, Any], None] | None = None
    ) -> Any:
        """The verb's answer, once it is durable."""
        if self.failure is not None:
            raise self.failure
        loop = asyncio.get_running_loop()
        call = Call(work, loop.create_future(), loop, unanswered)
        self._submit(call)
        assert call.future is not None
        return await call.future

    def _submit(self, call: Call) -> None:
        with self._lock:
            if self._closing or self._loop is None:
                raise self.failure or Closed(f"{self.place.url}: the engine is closed")
            self._waiting.append(call)
            if len(self._waiting) == 1:
                with suppress(RuntimeError):  # The loop failed: whoever tells its callers tells this one.
                    self._loop.call_soon_threadsafe(self._wake.set)

    def end(self) -> None:
        """Commit what was begun, then let go of the database; ``closed`` tells when."""
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
            asyncio.run(self._live())
        except BaseException as error:  # Whatever it was, somebody waits.
            _log.exception("the engine on %s failed", self.place.url)
            self._fail(EngineUnavailable(f"{self.place.url}: the engine failed ({error!r}): open it again"))
            self._answer_all()
        finally:
            if not self.opened.done():
                self.opened.set_exception(self.failure or Closed(f"{self.place.url}: it was not opened"))
            self.closed.set_result(None)

    def _answer_all(self) -> None:
        """Nobody will serve the calls that are left: tell them why."""
        with self._lock:
            self._closing = True
            calls = [*self._served, *self._waiting]
        calls += [outcome.call for commit in self._undelivered for outcome in commit.outcomes]
        self._tell([Outcome(call, None, self.failure) for call in calls], set())

    async def _live(self) -> None:
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
            asyncio.create_task(work()) for work in (self._flush, self._deliver, self._beat, self._watch)
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
        place = self.place
        place.check()
        await may_open(place)
        self._database = Database(place, await place.open_writer())
        try:
            # Another may have been here since the look.
            version = await place.opening(check_layout(self._database))
            self._ledger = Ledger(self._database, self._publish)
            self._owner: Owner = next_owner(await place.opening(read_owner(self._database)), place)
            await migrate(self._ledger, version)
            self._store = await load(self._ledger, self._owner.session)
            self._ledger.put(keys.LAYOUT_KEY, values.layout_value(keys.VERSION))
            self._sign(SYSTEM.now())
            await place.opening(self._make_durable())
        except BaseException:
            with suppress(Exception):
                await self._database.close()
            raise

    async def _shut(self) -> None:
        """Say that nobody owns the database any more, and close it."""
        if self.failure is None:
            self._owner = replace(self._owner, closed=True)
            self._sign(SYSTEM.now())
            try:
                async with asyncio.timeout(self.place.patience):
                    await self._make_durable()
            except (DayjobError, uniffi.Error, TimeoutError) as error:
                _log.warning("%s was not closed cleanly: %s", self.place.url, error)
        with suppress(uniffi.Error, TimeoutError):
            async with asyncio.timeout(self.place.patience):
                await self._database.close()

    async def _make_durable(self) -> None:
        """Write what is staged and wait for it; while nobody else does."""
        await self._publish()
        await self._database.flush()
        assert self._latest is not None
        await self._latest

    def _sign(self, now: int) -> None:
        self._owner = replace(self._owner, beat_us=now)
        self._ledger.put(keys.OWNER, values.owner_value(self._owner))

    async def _serve(self) -> None:
        while True:
            with self._lock:
                calls = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))]
                more = bool(self._waiting)
                if not calls and self._closing:
                    break
            if not more:
                self._wake.clear()
                with self._lock:
                    if self._waiting:
                        self._wake.set()
            self._served = calls
            if calls:
                await self._commit([await self._perform(call) for call in calls])
            else:
                await self._wake.wait()
        while self._undelivered:
            self._delivered.clear()
            await self._delivered.wait()

    async def _perform(self, call: Call) -> Outcome:
        if self.failure is not None:
            return Outcome(call, None, self.failure)
        try:
            await self._store.catch_up()
            answer = call.work(self._store)
            if inspect.iscoroutine(answer):
                answer = await answer
        except Exception as error:
            if isinstance(error, EngineFenced):
                self._fail(error)
            return Outcome(call, None, error)
        return Outcome(call, answer, None)

    async def _publish(self) -> None:
        """Hand what is staged to the database; ``_latest`` tells when it is durable.

        What can't be handed over is lost to the database but not to memory, so that is the end of it.
        """
        try:
            handle = await self._database.write(self._ledger.take())
        except DayjobError as error:
            self._fail(error)
            raise
        self._latest = asyncio.ensure_future(handle.await_durable())
        self._written.set()

    async def _commit(self, outcomes: list[Outcome]) -> None:
        topics = self._ledger.take_topics()
        with suppress(DayjobError):  # It is the core's failure then.
            if self._ledger.unsaved:
                await self._publish()
        if self.failure is not None:
            self._tell([Outcome(outcome.call, None, self.failure) for outcome in outcomes], topics)
            return
        if self._latest is None or (self._latest.done() and not self._undelivered):
            self._tell(outcomes, topics)
            return
        deadline = SYSTEM.elapsed() + self.place.patience
        self._undelivered.append(Commit(outcomes, topics, self._latest, deadline))
        self._delivering.set()
        while len(self._undelivered) >= _IN_FLIGHT:
            self._delivered.clear()
            await self._delivered.wait()

    async def _deliver(self) -> None:
        """Answer commit after commit, each when it is durable or its time is over."""
        while True:
            self._delivering.clear()
            while self._undelivered:
                commit = self._undelivered[0]
                if not commit.durable.done():
                    left = max(commit.deadline - SYSTEM.elapsed(), 0)
                    await asyncio.wait({commit.durable}, timeout=left)
                self._conclude(commit)
                self._undelivered.popleft()
                self._delivered.set()
            await self._delivering.wait()

    def _conclude(self, commit: Commit) -> None:
        if not commit.durable.done():
            self._give_up(commit)
            return
        error = commit.durable.exception()
        if error is not None:
            self._fail(self.place.translated(error) if isinstance(error, uniffi.Error) else _odd(error))
        if self.failure is not None:
            self._tell([Outcome(outcome.call, None, self.failure) for outcome in commit.outcomes], set())
        else:
            self._tell(commit.outcomes, commit.topics)

    def _give_up(self, commit: Commit) -> None:
        """The store does not answer: say so, and remember the answers that nobody got."""
        slow = EngineUnavailable(
            f"{self.place.url}: the store has not confirmed a write within {self.place.patience:g} s: "
            "the operation may be repeated"
        )
        late = []
        for outcome in commit.outcomes:
            if outcome.error is None:
                if outcome.call.unanswered is not None:
                    outcome.call.unanswered(self._store, outcome.answer)
                outcome = Outcome(outcome.call, None, slow)
            late.append(outcome)
        self._tell(late, set())
        commit.durable.add_done_callback(lambda _: self._tell([], commit.topics))

    def _tell(self, outcomes: list[Outcome], topics: set[Topic]) -> None:
        """Answer on the event loops of the callers, and announce on all that listen."""
        by_loop: dict[asyncio.AbstractEventLoop, tuple[list[Outcome], list[Signals]]] = {}
        for outcome in outcomes:
            if outcome.call.loop is not None:
                by_loop.setdefault(outcome.call.loop, ([], []))[0].append(outcome)
        if topics:
            with self._lock:
                audience = list(self._audience.items())
            for signals, loop in audience:
                by_loop.setdefault(loop, ([], []))[1].append(signals)
        for loop, (told, listeners) in by_loop.items():
            with suppress(RuntimeError):  # The event loop is gone, and with it whoever waited.
                loop.call_soon_threadsafe(_deliver_here, told, listeners, topics)

    def _fail(self, error: DayjobError) -> None:
        """The database can't be used any more: everybody is told, and woken to hear it."""
        if self.failure is None:
            self.failure = error
            with self._lock:
                audience = list(self._audience.items())
            for signals, loop in audience:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(signals.publish_all)

    # In the background.

    async def _flush(self) -> None:
        """Make durable what was written, at once if the last time was ``flush_ms`` ago, else when it will be.

        So an idle queue waits for the request only, and a busy one makes no more requests than it may.
        """
        interval = self.place.flush_ms / 1000
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
        """Give a sign of life, so that other hosts can tell that the owner lives."""
        while self.failure is None:
            await SYSTEM.wait(asyncio.Event(), self.place.beat)
            with suppress(DayjobError):
                self._submit(Call(lambda _: self._sign(SYSTEM.now()), None, None))

    async def _watch(self) -> None:
        """Notice a take-over also while nothing is written."""
        while self.failure is None:
            await SYSTEM.wait(asyncio.Event(), _WATCH)
            if self._database.fenced:
                self._fail(self.place.fenced())


def _odd(error: BaseException) -> EngineUnavailable:
    return EngineUnavailable(f"a write could not be confirmed ({error!r}): open the engine again")


def _deliver_here(outcomes: list[Outcome], listeners: list[Signals], topics: set[Topic]) -> None:
    for outcome in outcomes:
        future = outcome.call.future
        if future is not None and not future.done():
            if outcome.error is None:
                future.set_result(outcome.answer)
            else:
                future.set_exception(outcome.error)
    for signals in listeners:
        signals.publish(topics)
