"""The SQLite engine: durable jobs in one file, for any number of processes on one machine."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from dayjob.engines.base import Engine
from dayjob.engines.registry import Location
from dayjob.engines.sqlite.database import SqliteLayout, SqliteSettings
from dayjob.engines.sqlite.engine import SqliteEngine
from dayjob.errors import ConfigError
from dayjob.runtime.clock import SYSTEM, Clock


def create(location: Location, clock: Clock | None) -> Engine:
    return SqliteEngine(_read(location), clock or SYSTEM)


def layout(location: Location) -> SqliteLayout:
    return SqliteLayout(_read(location))


def _read(location: Location) -> SqliteSettings:
    """``sqlite:///relative.db`` or ``sqlite:////absolute.db``; ``synchronous``, ``timeout`` and ``mode``."""
    url = location.shown
    if location.parts.netloc:
        raise ConfigError(f"the URL {url!r} has two slashes: write three, as in sqlite:///jobs.db")
    path = unquote(location.parts.path[1:])
    if path in ("", ":memory:"):
        raise ConfigError(
            f"the URL {url!r} names no file: write sqlite:///jobs.db, or memory:// to keep nothing"
        )
    if "\0" in path:
        raise ConfigError(f"the URL {url!r} holds a NUL character: remove it")
    synchronous = location.choice("synchronous", "full", "normal")
    timeout = location.number("timeout", "30", 0, 3600)
    mode = location.take("mode", "0600")
    if not re.fullmatch(r"0?[67][0-7]{2}", mode):
        raise ConfigError(
            f"the URL {url!r} has mode={mode!r}: write the permissions of a new file, such as 0640"
        )
    location.done("sqlite:/// takes synchronous, timeout and mode")
    return SqliteSettings(url, Path(path).absolute(), synchronous.upper(), timeout, int(mode, 8))
