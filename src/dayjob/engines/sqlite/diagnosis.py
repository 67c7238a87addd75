"""What ``dayjob doctor`` says of a file: its layout, how it is written, and how much room there is."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator

from dayjob.engines.base import Diagnostic
from dayjob.engines.sqlite.database import Place

LITTLE = 2**30
"""Bytes of free space below which it is worth a word."""

_MEBIBYTE = 2**20


def diagnose(connection: sqlite3.Connection, place: Place) -> list[Diagnostic]:
    return list(_remarks(connection, place))


def _remarks(connection: sqlite3.Connection, place: Place) -> Iterator[Diagnostic]:
    (layout,) = connection.execute("SELECT value FROM dayjob_meta WHERE key = 'layout'").fetchone()
    size = place.path.stat().st_size / _MEBIBYTE
    yield Diagnostic("layout", "ok", f"version {layout} in {place.path} ({size:,.1f} MiB)")
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    if journal != "wal":
        yield Diagnostic(
            "journal", "warning", f"the file is in {journal} mode: readers and writers wait for each other",
            "the file system may not allow WAL: keep the file on a local disk",
        )  # fmt: skip
    if place.synchronous == "FULL":
        yield Diagnostic("durability", "ok", "what is committed is on disk (synchronous=full)")
    else:
        yield Diagnostic(
            "durability", "warning", "a power cut may lose the last commits (synchronous=normal)",
            "leave ?synchronous= out of the URL",
        )  # fmt: skip
    free = shutil.disk_usage(place.path.parent).free
    few = free < LITTLE
    yield Diagnostic(
        "space", "warning" if few else "ok", f"{free / _MEBIBYTE:,.0f} MiB free",
        "make room: a full disk refuses new jobs" if few else None,
    )  # fmt: skip
