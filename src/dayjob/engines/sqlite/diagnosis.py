"""The findings of ``dayjob doctor`` about a file: layout, journal mode, durability, free space."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator

from dayjob.engines.base import Diagnostic
from dayjob.engines.sqlite.database import SqliteSettings

LOW_SPACE = 2**30
"""Bytes of free space below which there is a warning."""

_MEBIBYTE = 2**20


def diagnose(connection: sqlite3.Connection, settings: SqliteSettings) -> Iterator[Diagnostic]:
    (layout,) = connection.execute("SELECT value FROM dayjob_meta WHERE key = 'layout'").fetchone()
    size = settings.path.stat().st_size / _MEBIBYTE
    yield Diagnostic("layout", "ok", f"version {layout} in {settings.path} ({size:,.1f} MiB)")
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    if journal != "wal":
        yield Diagnostic(
            "journal", "warning", f"the file is in {journal} mode: readers and writers wait for each other",
            "the file system may not allow WAL: keep the file on a local disk",
        )  # fmt: skip
    if settings.synchronous == "FULL":
        yield Diagnostic("durability", "ok", "commits are on disk (synchronous=full)")
    else:
        yield Diagnostic(
            "durability", "warning", "a power cut may lose the last commits (synchronous=normal)",
            "leave ?synchronous= out of the URL",
        )  # fmt: skip
    free = shutil.disk_usage(settings.path.parent).free
    low = free < LOW_SPACE
    yield Diagnostic(
        "space", "warning" if low else "ok", f"{free / _MEBIBYTE:,.0f} MiB free",
        "make room: a full disk refuses new jobs" if low else None,
    )  # fmt: skip
