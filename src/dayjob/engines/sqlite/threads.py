"""The two threads of an engine: one writes, one reads. Each has a connection that nobody else touches.

The writer takes all that is waiting into one transaction, so that whatever arrives during a commit
shares the next one. A piece of work that fails is undone alone. While it waits it looks now and then
whether another process has changed the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from dayjob.engines.sqlite.database import Place
from dayjob.engines.sqlite.forks import register
from dayjob.engines.sqlite.rows import text_or_bytes
from dayjob.engines.sqlite.store import Store
from dayjob.errors import Closed, DayjobError
from dayjob.runtime.signals import Signals, Topic

Answer = TypeVar("Answer")
Work = Callable[[Store], Any]
Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]

WATCH_INTERVAL = 0.025
"""Seconds between looks for changes by other processes; a look costs a few microseconds."""

_MOST = 100
"""How many pieces of work share a transaction at most."""


class StoreThread:
    """Runs pieces of work on a store of its own and answers on the event loop."""

    def __init__(self, place: Place, signals: Signals, name: str) -> None:
        self.lock = Lock()
        self._place = place
        self._signals = signals
        self._opened: tuple[sqlite3.Connection, Store] | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Work, asyncio.Future[Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._closed = False
        register(self)
        self._thread.start()

    @property
    def abandoned(self) -> bool:
        """Whether the event loop that waits for answers is gone."""
        return self._loop.is_closed()

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._open()[0]

    @property
    def _store(self) -> Store:
        return self._open()[1]

    def _open(self) -> tuple[sqlite3.Connection, Store]:
        if self._opened is None:
            connection = self._place.connect()
            self._opened = (connection, Store(connection))
        return self._opened

    def disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    async def do(self, work: Callable[[Store], Answer]) -> Answer:
        if self._closed:
            raise Closed(f"{self._place.url}: the engine is closed")
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._queue.put((work, future))
        return await future

    async def close(self) -> None:
        """Finish what is waiting, then end the thread and close the connection."""
        self._closed = True
        self._queue.put(None)
        with ThreadPoolExecutor(1) as waiter:  # The loop's own may be full of calls that never end.
            await asyncio.get_running_loop().run_in_executor(waiter, self._thread.join)
        self.disconnect()

    def _run(self) -> None:
        while True:
            batch = self._next()
            work = [item for item in batch if item is not None]
            if work:
                with self.lock:
                    try:
                        outcomes, topics = self._perform(work)
                    except Exception as error:
                        outcomes, topics = self._fail(work, error)
                self._tell(self._deliver, outcomes, topics)
            if len(work) < len(batch):
                return

    def _next(self) -> list[tuple[Work, asyncio.Future[Any]] | None]:
        """All that is waiting, at least one."""
        batch = [self._wait()]
        while batch[-1] is not None and len(batch) < _MOST:
            try:
                batch.append(self._queue.get_nowait())
            except Empty:
                break
        return batch

    def _wait(self) -> tuple[Work, asyncio.Future[Any]] | None:
        return self._queue.get()

    def _perform(self, batch: list[tuple[Work, asyncio.Future[Any]]]) -> tuple[list[Outcome], set[Topic]]:
        raise NotImplementedError

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # The event loop is gone, and with it whoever waited.
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _deliver(self, outcomes: list[Outcome], topics: set[Topic]) -> None:
        for future, answer, error in outcomes:
            if not future.done():
                if error is None:
                    future.set_result(answer)
                else:
                    future.set_exception(error)
        self._signals.publish(topics)

    def _attempt(self, work: Work, future: asyncio.Future[Any]) -> Outcome:
        try:
            return future, work(self._store), None
        except sqlite3.Error as error:
            if "decode to UTF-8" in str(error) and self._connection.text_factory is str:
                self._connection.text_factory = text_or_bytes
                return self._attempt(work, future)
            return future, None, self._place.outage(error)
        except Exception as error:
            return future, None, error

    def _fail(
        self, batch: list[tuple[Work, asyncio.Future[Any]]], error: Exception
    ) -> tuple[list[Outcome], set[Topic]]:
        """Nothing of the batch was done; what went wrong is told, and the thread goes on."""
        if self._opened is not None:
            connection, store = self._opened
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            store.forget()
        if isinstance(error, sqlite3.Error):
            error = self._place.outage(error)
        return [(future, None, error) for _, future in batch], set()


class Reader(StoreThread):
    """Looks at the last committed state, each piece of work at one moment of it."""

    def _perform(self, batch: list[tuple[Work, asyncio.Future[Any]]]) -> tuple[list[Outcome], set[Topic]]:
        outcomes = []
        for work, future in batch:
            outcomes.append(self._attempt(partial(self._at_one_moment, work), future))
        return outcomes, set()

    def _at_one_moment(self, work: Work, store: Store) -> Any:
        """Looking may be repeated, so it can wait for whoever holds the file, as after a crash."""

        def look() -> Any:
            self._connection.execute("BEGIN")
            try:
                return work(store)
            finally:
                self._connection.execute("COMMIT")

        return self._place.patiently(look)


class Writer(StoreThread):
    """Changes the store, one durable transaction for all that is waiting."""

    _version = 0
    """What the connection last said of changes by others; never 0, and not comparable between connections."""

    def disconnect(self) -> None:
        self._version = 0
        super().disconnect()

    def _wait(self) -> tuple[Work, asyncio.Future[Any]] | None:
        while True:
            try:
                return self._queue.get(timeout=WATCH_INTERVAL)
            except Empty:
                with self.lock:
                    self._look()

    def _look(self) -> None:
        """Wake everybody if another connection has changed the file since the last look."""
        try:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except (sqlite3.Error, DayjobError):
            return
        if version != self._version:
            self._version = version
            self._tell(self._signals.publish_all)

    def _perform(self, batch: list[tuple[Work, asyncio.Future[Any]]]) -> tuple[list[Outcome], set[Topic]]:
        self._place.begin(self._connection)
        self._look()
        store = self._store
        outcomes = []
        topics: set[Topic] = set()
        for work, future in batch:
            outcomes.append(self._isolated(work, future))
            topics |= store.topics
            store.topics.clear()
        self._connection.execute("COMMIT")
        return outcomes, topics

    def _isolated(self, work: Work, future: asyncio.Future[Any]) -> Outcome:
        """Do one piece of work so that its failure leaves nothing behind, and its neighbours alone."""
        self._connection.execute("SAVEPOINT dayjob_work")
        outcome = self._attempt(work, future)
        if outcome[2] is not None:
            if not self._connection.in_transaction:
                raise outcome[2]
            self._connection.execute("ROLLBACK TO dayjob_work")
            self._store.forget()
        self._connection.execute("RELEASE dayjob_work")
        return outcome
