"""The SQLite engine under test: files, and their defects."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

from tests.support.bound import BOUND
from tests.support.storages.base import EngineUnderTest


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory}/jobs.db"


def _sqlite(directory: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(directory / "jobs.db", timeout=BOUND, isolation_level=None))


def _sqlite_transaction(directory: Path) -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(directory / "jobs.db", timeout=BOUND, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return closing(connection)


def _sqlite_damage(assignment: str) -> Callable[[Path, str], None]:
    def damage(directory: Path, id: str) -> None:
        with _sqlite(directory) as connection:
            changed = connection.execute(
                f"UPDATE dayjob_jobs SET {assignment} WHERE id = ?", (UUID(id).bytes,)
            ).rowcount
        assert changed == 1

    return damage


SQLITE_DAMAGE = {
    assignment: _sqlite_damage(assignment)
    for assignment in (
        "headers = x'c1ff00'",
        "headers = x'920102'",
        "headers = 'text'",
        "payload = 'text'",
        "payload = 5",
        "task = x'00ff'",
        "task = CAST(x'ff' AS TEXT)",
        "tenant = x'00ff'",
        "tenant = CAST(x'61ff62' AS TEXT)",
        "attempts = 'many'",
        "max_attempts = 'many'",
        "epoch = x'00'",
        "run_at = 'soon'",
        "enqueued_at = 1.5",
    )
}


def _not_a_database(directory: Path) -> str:
    (directory / "jobs.db").write_bytes(b"this is no database\n" * 100)
    return sqlite_url(directory)


def _parent_is_a_file(directory: Path) -> str:
    (directory / "file").write_text("in the way")
    return f"sqlite:///{directory}/file/jobs.db"


def _is_a_folder(directory: Path) -> str:
    (directory / "jobs.db").mkdir()
    return sqlite_url(directory)


def _no_such_folder(directory: Path) -> str:
    return f"sqlite:///{directory}/missing/jobs.db"


def _from_the_future(directory: Path) -> str:
    with _sqlite(directory) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE dayjob_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL)")
        connection.execute("INSERT INTO dayjob_meta VALUES ('layout', 9999)")
    return sqlite_url(directory)


def _option(text: str) -> Callable[[Path], str]:
    return lambda directory: f"{sqlite_url(directory)}?{text}"


SQLITE_UNUSABLE: dict[str, Callable[[Path], str]] = {
    "not a database": _not_a_database,
    "parent is a file": _parent_is_a_file,
    "is a folder": _is_a_folder,
    "no such folder": _no_such_folder,
    "schema from the future": _from_the_future,
    "unknown option": _option("colour=blue"),
    "bad synchronous": _option("synchronous=perhaps"),
    "bad timeout": _option("timeout=soon"),
    "no path": lambda directory: "sqlite:///",
    "a host": lambda directory: "sqlite://host/jobs.db",
}


def _sqlite_snapshot(directory: Path) -> Callable[[], None]:
    files = {file: file.read_bytes() for file in directory.glob("jobs.db*")}

    def restore() -> None:
        for file in directory.glob("jobs.db*"):
            file.unlink()
        for file, content in files.items():
            file.write_bytes(content)

    return restore


SQLITE = EngineUnderTest(
    "sqlite", sqlite_url, SQLITE_DAMAGE, SQLITE_UNUSABLE, _sqlite_transaction, _sqlite_snapshot
)
