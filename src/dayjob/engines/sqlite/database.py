"""Opening a SQLite file: durability, lock handling, and the version of the layout."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock

from msgspec import Struct

from dayjob.engines.base import Reply
from dayjob.engines.sqlite.statements import migrations
from dayjob.errors import ConfigError, EngineFenced, EngineUnavailable
from dayjob.runtime import entropy
from dayjob.runtime.clock import SYSTEM, block

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.002

_LOG_BYTES = 16 * 2**20
"""The size to which SQLite truncates a write-ahead log that grew while a reader blocked its reuse."""

FileId = tuple[int, int]
"""The device and the inode of a file."""


class Locked(EngineUnavailable):
    """Another transaction kept the write lock."""


class SqliteSettings(Struct, frozen=True):
    """The file, and how it is opened."""

    url: str
    path: Path
    synchronous: str = "FULL"
    timeout: float = 30.0
    """Seconds that an operation waits for the locks of other processes."""
    mode: int = 0o600
    """The permissions of a new file. SQLite gives them to the files beside it, too."""

    @property
    def log(self) -> str:
        """The path of the write-ahead log. It is beside the file that a symbolic link leads to."""
        return f"{os.path.realpath(self.path)}-wal"

    def connect(self) -> sqlite3.Connection:
        """Return a connection in autocommit mode. Its owner begins and ends the transactions."""
        self._create_file()
        try:
            connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
            )
        except sqlite3.Error as error:
            raise self.refusal(error) from error
        try:
            self.when_unlocked(lambda: connection.execute("PRAGMA journal_mode = WAL"))
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute("PRAGMA cache_size = -16000")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise self.refusal(error) from error
            raise
        return connection

    def _create_file(self) -> None:
        """Create the file with its permissions, if there is none. SQLite reports every other problem."""
        if not self.path.exists():
            with suppress(OSError):
                flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
                file = os.open(os.path.realpath(self.path), flags, 0o600)
                try:
                    if self.mode != 0o600:  # The umask does not apply to permissions that the URL requests.
                        os.chmod(file, self.mode)  # noqa: PTH101 - it is open
                finally:
                    os.close(file)

    def when_unlocked(self, attempt: Callable[[], Reply], lock: Lock | None = None) -> Reply:
        """Repeat the attempt until no other process holds the lock, up to the timeout.

        ``lock``, which the caller holds, is released between the attempts, so that a fork need not wait. The
        fork closes the connection: each attempt must open its own.

        The pauses are short and random, so that each of several processes gets its share. With SQLite's
        own busy handler, the process that has just committed wins again and again.
        """
        deadline = SYSTEM.elapsed() + self.timeout
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if SYSTEM.elapsed() >= deadline:
                    raise Locked(
                        f"{self.url}: the database stayed locked for {self.timeout:g} s: find the process "
                        "that keeps a transaction open, or raise ?timeout="
                    ) from error
            pause = _SHORTEST_PAUSE + (_LONGEST_PAUSE - _SHORTEST_PAUSE) * entropy.fraction()
            if lock is not None:
                lock.release()
            try:
                block(pause)
            finally:
                if lock is not None:
                    lock.acquire()

    def begin(self, connection: sqlite3.Connection) -> None:
        """Take the write lock."""
        self.when_unlocked(lambda: connection.execute("BEGIN IMMEDIATE"))

    def prepare(self) -> sqlite3.Connection:
        """Open the file and migrate its layout. Refuse files that can't be used, or have a newer layout."""
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"{self.url}: the folder {str(self.path.parent)!r} does not exist: create it first"
            )
        if self.path.is_dir():
            raise ConfigError(f"{self.url}: {str(self.path)!r} is a folder: name a file in it")
        by_effective_id = os.access in os.supports_effective_ids
        if self.path.exists() and not os.access(self.path, os.R_OK | os.W_OK, effective_ids=by_effective_id):
            raise self.refusal(sqlite3.OperationalError("unable to open: permission denied"))
        connection = self.connect()
        try:
            self.create_layout(connection)
            self.begin(connection)
            try:  # ``BEGIN`` alone does not fail in a file that is read-only.
                connection.execute("UPDATE dayjob_meta SET value = value")
            finally:
                connection.execute("ROLLBACK")
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise self.refusal(error) from error
            raise
        return connection

    def create_layout(self, connection: sqlite3.Connection) -> None:
        """Create or migrate the tables, under the write lock. Without anything to do, it needs no lock."""
        if self.when_unlocked(lambda: _version(connection)) == migrations()[-1][0]:
            return
        self.begin(connection)
        try:
            self.migrate(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Create or migrate the tables in the open transaction. Refuse a newer layout."""
        scripts = migrations()
        version, newest = _version(connection), scripts[-1][0]
        if version > newest:
            raise ConfigError(
                f"{self.url}: the file has layout {version} and this dayjob supports up to {newest}: "
                "upgrade dayjob, or name another file"
            )
        for number, script in scripts:
            if number > version:
                for command in _commands(script):
                    connection.execute(command)
                connection.execute(_mark(number))

    def file_id(self) -> FileId | None:
        """Return which file is at the path, or None if there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def replaced(self) -> EngineFenced:
        return EngineFenced(
            f"{self.url}: the file was deleted or replaced while it was in use, so nothing more is written: "
            "stop every process that uses it before you replace a file, then start them again"
        )

    def refusal(self, error: sqlite3.Error) -> ConfigError | EngineUnavailable:
        """Return the error for a file that can't be opened."""
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
        """Return the error for an operation that failed because of the storage."""
        hint = "make room on the disk" if "full" in str(error) else "check the file and its disk"
        return EngineUnavailable(f"{self.url}: {error}: nothing was changed; {hint}, then try again")


class SqliteLayout(Struct, frozen=True):
    """The tables of one file."""

    settings: SqliteSettings

    async def script(self, since: int | None = None) -> str:
        """Return the SQL from a layout, or from that of the file, to the newest, as one transaction."""
        newest = migrations()[-1][0]
        if since is None:
            since = self._version()
        elif not 0 <= since <= newest:
            raise ConfigError(f"there is no layout {since}: pass 0 to {newest}")
        parts = ["BEGIN;"]
        for number, sql in migrations()[since:]:
            parts += [f"-- Layout {number}", sql.strip(), _mark(number)]
        return "\n\n".join([*parts, "COMMIT;", ""])

    async def apply(self, on_progress: Callable[[str], None]) -> tuple[int, int]:
        before = self._version()
        self.settings.prepare().close()
        return before, migrations()[-1][0]

    def _version(self) -> int:
        if not self.settings.path.exists():
            return 0
        with closing(self.settings.connect()) as connection:
            return _version(connection)


def is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _version(connection: sqlite3.Connection) -> int:
    cursor = connection.cursor()
    cursor.row_factory = None
    if cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'dayjob_meta'").fetchone() is None:
        return 0
    row = cursor.execute("SELECT value FROM dayjob_meta WHERE key = 'layout'").fetchone()
    return int(row[0]) if row else 0


def _mark(number: int) -> str:
    return (
        f"INSERT INTO dayjob_meta (key, value) VALUES ('layout', {number}) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value;"
    )


def _commands(script: str) -> list[str]:
    """Return the statements of a script. ``executescript`` would commit in the middle."""
    commands: list[str] = []
    command = ""
    for line in script.splitlines(keepends=True):
        command += line
        if sqlite3.complete_statement(command):
            commands.append(command)
            command = ""
    return commands
