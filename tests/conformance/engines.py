"""The engines under test. A new one is one entry in ``ENGINES``."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.engines.slatedb.damage import damage_job, make_database


@dataclass(frozen=True)
class EngineUnderTest:
    """How to reach an engine's storage, and how to harm it."""

    name: str

    url: Callable[[Path], str]
    """The URL of a fresh storage that belongs to the directory; the same directory, the same storage."""

    corrupt: Mapping[str, Callable[[Path, str], None]] = field(default_factory=dict)
    """Ways to make the stored record of a job undecodable. Needed if jobs are stored in encoded form."""

    unusable: Mapping[str, Callable[[Path], str]] = field(default_factory=dict)
    """URLs that can't be opened, by the reason: each makes what is in the way and returns the URL."""

    connect: Callable[[Path], AbstractContextManager[Any]] | None = None
    """A user's own connection to the storage, with an open transaction. Needed for transactional enqueue."""

    def __str__(self) -> str:
        return self.name


# Memory.


def memory_url(directory: Path) -> str:
    return f"memory://{directory.name}"


# SQLite.


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory}/jobs.db"


def _sqlite(directory: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(directory / "jobs.db", timeout=20, isolation_level=None))


def _sqlite_transaction(directory: Path) -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(directory / "jobs.db", timeout=20, isolation_level=None)
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
    "bad busy_timeout": _option("busy_timeout=soon"),
    "no path": lambda directory: "sqlite:///",
    "a host": lambda directory: "sqlite://host/jobs.db",
}


# SlateDB.


def slatedb_url(directory: Path) -> str:
    return f"file://{directory}/jobs"


def _slatedb_damage(what: str) -> Callable[[Path, str], None]:
    def damage(directory: Path, id: str) -> None:
        damage_job(slatedb_url(directory), UUID(id).bytes, what)

    return damage


SLATEDB_DAMAGE = {
    what: _slatedb_damage(what)
    for what in (
        "no value",
        "no version",
        "cut short",
        "no body",
        "body of another type",
        "bad headers",
        "bad text",
    )
}


def _slatedb_in_a_file(directory: Path) -> str:
    (directory / "jobs").write_text("in the way")
    return slatedb_url(directory)


def _slatedb_among_files(directory: Path) -> str:
    (directory / "jobs").mkdir()
    (directory / "jobs" / "letter.txt").write_text("dear")
    return slatedb_url(directory)


def _slatedb_no_manifest(directory: Path) -> str:
    (directory / "jobs" / "manifest").mkdir(parents=True)
    (directory / "jobs" / "manifest" / "00000000000000000001.manifest").write_bytes(b"no manifest")
    return slatedb_url(directory)


def _slatedb_written(rows: str) -> Callable[[Path], str]:
    def make(directory: Path) -> str:
        make_database(directory / "jobs", rows)
        return slatedb_url(directory)

    return make


def _slatedb_option(text: str) -> Callable[[Path], str]:
    return lambda directory: f"{slatedb_url(directory)}?{text}"


SLATEDB_UNUSABLE: dict[str, Callable[[Path], str]] = {
    "is a file": _slatedb_in_a_file,
    "no such folder": lambda directory: f"file://{directory}/missing/jobs",
    "parent is a file": lambda directory: f"{_slatedb_in_a_file(directory)}/jobs",
    "holds other files": _slatedb_among_files,
    "not a database": _slatedb_no_manifest,
    "layout from the future": _slatedb_written("future"),
    "unreadable layout": _slatedb_written("unreadable"),
    "somebody else's database": _slatedb_written("foreign"),
    "unknown option": _slatedb_option("colour=blue"),
    "bad flush_ms": _slatedb_option("flush_ms=0"),
    "bad takeover": _slatedb_option("takeover=yes"),
    "bad patience": _slatedb_option("patience=long"),
    "region of a folder": _slatedb_option("region=eu-west-1"),
    "no path": lambda directory: "file:///",
    "a host": lambda directory: "file://host/jobs",
    "nothing to read": _slatedb_option("readonly=1"),
    "no bucket": lambda directory: "s3:///jobs",
    "region of another store": lambda directory: "gs://bucket/jobs?region=eu-west-1",
}


ENGINES: list[EngineUnderTest] = [
    EngineUnderTest("memory", memory_url, unusable={"unknown option": lambda _: "memory://x?colour=blue"}),
    EngineUnderTest("sqlite", sqlite_url, SQLITE_DAMAGE, SQLITE_UNUSABLE, _sqlite_transaction),
    EngineUnderTest("slatedb", slatedb_url, SLATEDB_DAMAGE, SLATEDB_UNUSABLE),
]
