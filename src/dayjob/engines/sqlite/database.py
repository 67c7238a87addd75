"""Opening a SQLite file: durability, busy handling, and the layout's version."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from dayjob.engines.sqlite.statements import migrations
from dayjob.errors import ConfigError, EngineUnavailable
from dayjob.runtime import entropy
from dayjob.runtime.clock import SYSTEM, block

Answer = TypeVar("Answer")

_SHORTEST_NAP, _LONGEST_NAP = 0.0002, 0.002


class Place(Struct, frozen=True):
    """Which file, and how it is opened."""

    url: str
    path: Path
    synchronous: str = "FULL"
    busy_timeout: float = 30.0

    def connect(self) -> sqlite3.Connection:
        """A connection in autocommit mode whose owner begins and ends its transactions."""
        try:
            connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
            )
        except sqlite3.Error as error:
            raise self.refusal(error) from error
        try:
            self.patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute("PRAGMA cache_size = -16000")
            connection.execute("PRAGMA temp_store = MEMORY")
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise self.refusal(error) from error
            raise
        return connection

    def patiently(self, attempt: Callable[[], Answer]) -> Answer:
        """Try until nobody else holds the lock.

        The naps are short and random, so that of several processes each gets its share; SQLite's own
        waiting lets the process that has just committed win again and again.
        """
        deadline = SYSTEM.elapsed() + self.busy_timeout
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if SYSTEM.elapsed() >= deadline:
                    raise EngineUnavailable(
                        f"{self.url}: the database stayed locked for {self.busy_timeout:g} s: look for a "
                        "process that keeps a transaction open, or raise ?busy_timeout="
                    ) from error
            block(_SHORTEST_NAP + (_LONGEST_NAP - _SHORTEST_NAP) * entropy.fraction())

    def begin(self, connection: sqlite3.Connection) -> None:
        """Take the write lock."""
        self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))

    def prepare(self) -> sqlite3.Connection:
        """Open the file and bring its layout up to date; refuse what is not, or no longer, ours to use."""
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"{self.url}: the folder {str(self.path.parent)!r} does not exist: create it first"
            )
        if self.path.is_dir():
            raise ConfigError(f"{self.url}: {str(self.path)!r} is a folder: name a file in it")
        as_itself = os.access in os.supports_effective_ids
        if self.path.exists() and not os.access(self.path, os.R_OK | os.W_OK, effective_ids=as_itself):
            raise self.refusal(sqlite3.OperationalError("unable to open: permission denied"))
        connection = self.connect()
        try:
            self._migrate(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise self.refusal(error) from error
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the layout up to date, under the write lock."""
        scripts = migrations()
        newest = scripts[-1][0]
        if self.patiently(lambda: _version(connection)) == newest:
            _check_writable(self, connection)
            return
        self.begin(connection)
        try:
            version = _version(connection)
            if version > newest:
                raise ConfigError(
                    f"{self.url}: the file has layout {version} and this dayjob knows up to {newest}: "
                    "upgrade dayjob, or name another file"
                )
            for number, script in scripts:
                if number > version:
                    for command in _commands(script):
                        connection.execute(command)
                    connection.execute(_mark(number))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def refusal(self, error: sqlite3.Error) -> ConfigError | EngineUnavailable:
        """Why the file can't be used, for errors met while opening it."""
        text = str(error)
        if "not a database" in text:
            return ConfigError(f"{self.url}: {str(self.path)!r} is not a SQLite database: name another file")
        if "unable to open" in text or "readonly" in text:
            return ConfigError(
                f"{self.url}: {str(self.path)!r} can't be opened for writing ({text}): "
                "check the permissions of the file and of its folder"
            )
        return self.outage(error)

    def outage(self, error: sqlite3.Error) -> EngineUnavailable:
        """An operation failed because of the storage."""
        hint = "make room on the disk" if "full" in str(error) else "check the file and its disk"
        return EngineUnavailable(f"{self.url}: {error}: nothing was changed; {hint}, then try again")


class SqliteLayout(Struct, frozen=True):
    """The tables of one file."""

    place: Place

    def script(self) -> str:
        """The SQL that creates them, as one transaction."""
        parts = ["BEGIN;"]
        for number, sql in migrations():
            parts += [f"-- Layout {number}", sql.strip(), _mark(number)]
        return "\n\n".join([*parts, "COMMIT;", ""])

    async def apply(self) -> tuple[int, int]:
        before = self._version() if self.place.path.exists() else 0
        self.place.prepare().close()
        return before, migrations()[-1][0]

    def _version(self) -> int:
        with closing(self.place.connect()) as connection:
            return _version(connection)


def is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _check_writable(place: Place, connection: sqlite3.Connection) -> None:
    """``BEGIN`` alone does not fail on a file that is read-only."""
    place.begin(connection)
    try:
        connection.execute("UPDATE dayjob_meta SET value = value")
    finally:
        connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'dayjob_meta'").fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT value FROM dayjob_meta WHERE key = 'layout'").fetchone()
    return int(row[0]) if row else 0


def _mark(number: int) -> str:
    return (
        f"INSERT INTO dayjob_meta (key, value) VALUES ('layout', {number}) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value;"
    )


def _commands(script: str) -> list[str]:
    """The statements of a script one by one; ``executescript`` would commit in the middle."""
    commands: list[str] = []
    command = ""
    for line in script.splitlines(keepends=True):
        command += line
        if sqlite3.complete_statement(command):
            commands.append(command)
            command = ""
    return commands
