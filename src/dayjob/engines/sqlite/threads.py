"""The two threads of an engine, a writer and a reader, each with its own connection.

The writer runs all waiting verbs in one transaction, so that the verbs that arrive during a commit share
the next one. A verb that fails is rolled back alone. While the writer waits, it looks for changes by other
processes: at each notification, and at an interval.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from dayjob.engines.base import Reply
from dayjob.engines.local import Verb
from dayjob.engines.sqlite.database import FileId, SqliteSettings
from dayjob.engines.sqlite.forks import register
from dayjob.engines.sqlite.log_watch import LogWatch, notify, sync
from dayjob.engines.sqlite.rows import text_or_bytes
from dayjob.engines.sqlite.store import Owner, SqliteStore
from dayjob.engines.store import run_now
from dayjob.errors import Closed, DayjobError, EngineFenced
from dayjob.runtime.signals import Signals, Topic
from dayjob.runtime.threads import joined

AnyVerb = Verb[SqliteStore, Any]
Call = tuple[AnyVerb, "asyncio.Future[Any]", bool]
"""A verb, the future of its caller, and whether its commit may reach the disk after its reply."""

Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Order(Enum):
    """An item of the queue that is not a call."""

    LOOK = "look"
    END = "end"


WATCH_INTERVAL = 0.025
"""Seconds between polls for changes by other processes. A poll costs a few microseconds."""

_MAX_CALLS = 100
"""The largest number of calls in one transaction."""

_REPLACED = -1
"""In place of the ``data_version`` of a file that was deleted or replaced."""


class StoreThread(ABC):
    """Runs verbs on its own store and replies on the event loop. ``file`` is the file that was opened."""

    def __init__(
        self, settings: SqliteSettings, file: FileId | None, signals: Signals, name: str, owner: Owner
    ) -> None:
        self.lock = Lock()
        self._settings = settings
        self._file = file
        self._owner = owner
        self._signals = signals
        self._opened: tuple[sqlite3.Connection, SqliteStore] | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Call | Order] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._closed = False
        register(self)
        self._thread.start()

    @property
    def abandoned(self) -> bool:
        """Return whether the event loop that waits for replies is closed."""
        return self._loop.is_closed()

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._open()[0]

    @property
    def _store(self) -> SqliteStore:
        return self._open()[1]

    def _open(self) -> tuple[sqlite3.Connection, SqliteStore]:
        if self._opened is None:
            self._check_file()
            connection = self._settings.connect()
            try:
                self._settings.create_layout(connection)
            except BaseException:
                connection.close()
                raise
            self._opened = (connection, SqliteStore(connection, self._owner))
        return self._opened

    def _check_file(self) -> None:
        """Raise if the file was deleted or replaced. Writes to it would be lost."""
        with suppress(OSError):  # A folder that can't be read shows nothing about the file.
            if self._settings.file_id() != self._file:
                raise self._settings.replaced()

    def disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    async def run(self, verb: Verb[SqliteStore, Reply], sync_later: bool = False) -> Reply:
        if self._closed:
            raise Closed(f"{self._settings.url}: the engine is closed")
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._queue.put((verb, future, sync_later))
        return await future

    async def close(self) -> None:
        """Run the waiting calls, then end the thread and close the connection."""
        self._closed = True
        self._queue.put(Order.END)
        await joined(self._thread)
        self.disconnect()

    def _run(self) -> None:
        while True:
            batch = self._next()
            calls = [item for item in batch if not isinstance(item, Order)]
            if calls:
                with self.lock:
                    try:
                        outcomes, topics = self._perform(calls)
                    except Exception as error:
                        outcomes, topics = self._fail(calls, error)
                self._call_soon(self._deliver, outcomes, topics)
            if Order.END in batch:
                return

    def _next(self) -> list[Call | Order]:
        """Return the waiting calls and orders, at least one."""
        batch = [self._wait()]
        while batch[-1] is not Order.END and len(batch) < _MAX_CALLS:
            try:
                batch.append(self._queue.get_nowait())
            except Empty:
                break
        return batch

    def _wait(self) -> Call | Order:
        return self._queue.get()

    @abstractmethod
    def _perform(self, calls: list[Call]) -> tuple[list[Outcome], set[Topic]]:
        """Run the calls. Return their outcomes and the topics that they changed."""

    def _call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # The event loop is closed, and with it the callers.
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _deliver(self, outcomes: list[Outcome], topics: set[Topic]) -> None:
        for future, reply, error in outcomes:
            if not future.done():
                if error is None:
                    future.set_result(reply)
                else:
                    future.set_exception(error)
        self._signals.publish(topics)

    def _attempt(self, verb: AnyVerb, future: asyncio.Future[Any]) -> Outcome:
        try:
            return future, self._execute(verb), None
        except sqlite3.Error as error:
            if "decode to UTF-8" in str(error) and self._connection.text_factory is str:
                self._connection.text_factory = text_or_bytes
                return self._attempt(verb, future)
            return future, None, self._settings.outage(error)
        except Exception as error:
            return future, None, error

    @abstractmethod
    def _execute(self, verb: AnyVerb) -> Any:
        """Run one verb on the store. Return its reply."""

    def _fail(self, calls: list[Call], error: Exception) -> tuple[list[Outcome], set[Topic]]:
        """Roll back the transaction and return the error for each call. The thread continues."""
        if self._opened is not None:
            connection, store = self._opened
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            store.discard()
        if isinstance(error, sqlite3.Error):
            error = self._settings.outage(error)
        return [(future, None, error) for _, future, _ in calls], set()


class Reader(StoreThread):
    """Reads the last committed state. Each call reads one snapshot."""

    def _perform(self, calls: list[Call]) -> tuple[list[Outcome], set[Topic]]:
        self._check_file()
        return [self._attempt(verb, future) for verb, future, _ in calls], set()

    def _execute(self, verb: AnyVerb) -> Any:
        """Reads can be repeated, so they wait for a process that holds the file, as after a crash."""

        def read() -> Any:
            self._connection.execute("BEGIN")
            try:
                return run_now(verb(self._store))
            finally:
                self._connection.execute("COMMIT")

        return self._settings.when_unlocked(read, self.lock)


class Writer(StoreThread):
    """Writes to the store, in one durable transaction for all waiting calls."""

    _unsynced = False
    """Whether the last commit is not on disk yet."""

    _version = 0
    """The last ``data_version`` of the connection. It is never 0, and differs between connections."""

    def __init__(self, settings: SqliteSettings, *arguments: Any) -> None:
        self._log = settings.log
        self._synchronous = settings.synchronous
        self._watch = LogWatch(self._log, lambda: self._queue.put(Order.LOOK))
        super().__init__(settings, *arguments)

    def disconnect(self) -> None:
        self._version = 0
        self._synchronous = self._settings.synchronous
        super().disconnect()

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self._watch.close()

    def _wait(self) -> Call | Order:
        if self._unsynced:
            self._unsynced = False
            sync(self._log)
        while True:
            item: Call | Order = Order.LOOK
            with suppress(Empty):
                item = self._queue.get(timeout=WATCH_INTERVAL)
            if item is not Order.LOOK:
                return item
            with self.lock, suppress(EngineFenced):
                self._look()

    def _look(self) -> None:
        """Publish all topics if another connection has changed the file since the last look.

        Raise if the file was deleted or replaced. The topics wake waiting calls, which then raise, too.
        """
        try:
            self._check_file()
            connection = self._connection
            if self._version == 0:  # The connection is new, and its log may be.
                self._watch.watch()
            version = connection.execute("PRAGMA data_version").fetchone()[0]
        except EngineFenced:
            version = _REPLACED
        except (sqlite3.Error, DayjobError):
            return
        if version != self._version:
            self._version = version
            self._call_soon(self._signals.publish_all)
        if version == _REPLACED:
            raise self._settings.replaced()

    def _perform(self, calls: list[Call]) -> tuple[list[Outcome], set[Topic]]:
        durable = self._settings.synchronous
        synchronous = "NORMAL" if all(sync_later for _, _, sync_later in calls) else durable
        self._settings.when_unlocked(lambda: self._begin(synchronous), self.lock)
        self._look()
        store, connection = self._store, self._connection
        before = connection.total_changes
        outcomes = []
        topics: set[Topic] = set()
        for verb, future, _ in calls:
            outcomes.append(self._isolated(verb, future))
            topics |= store.topics
            store.topics.clear()
        connection.execute("COMMIT")
        self._unsynced = synchronous != durable and connection.total_changes != before
        if topics:
            notify(self._log)
        return outcomes, topics

    def _begin(self, synchronous: str) -> None:
        connection = self._connection
        if self._synchronous != synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        connection.execute("BEGIN IMMEDIATE")

    def _isolated(self, verb: AnyVerb, future: asyncio.Future[Any]) -> Outcome:
        """Run one verb so that its failure leaves no change of its own and does not affect the others."""
        self._connection.execute("SAVEPOINT dayjob_call")
        outcome = self._attempt(verb, future)
        if outcome[2] is not None and not self._connection.in_transaction:
            raise outcome[2]
        self._connection.execute("RELEASE dayjob_call")
        return outcome

    def _execute(self, verb: AnyVerb) -> Any:
        store = self._store
        try:
            reply = run_now(verb(store))
            store.flush()
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO dayjob_call")
                store.discard()
            raise
        return reply
