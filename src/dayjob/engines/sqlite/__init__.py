"""The SQLite engine: durable jobs in one file, for any number of processes on one machine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from dayjob.engines.registry import Location
from dayjob.engines.sqlite.database import SqliteLayout, SqliteSettings
from dayjob.engines.sqlite.engine import SqliteEngine
from dayjob.errors import ConfigError
from dayjob.runtime.clock import Clock

_SYNCHRONOUS = ("full", "normal")


def create(location: Location, clock: Clock) -> SqliteEngine:
    return SqliteEngine(_read(location), clock)


def layout(location: Location) -> SqliteLayout:
    return SqliteLayout(_read(location))


def _read(location: Location) -> SqliteSettings:
    """``sqlite:///relative.db`` or ``sqlite:////absolute.db``, ``?synchronous=`` and ``?timeout=``."""
    url = location.url
    if location.parts.netloc:
        raise ConfigError(f"the URL {url!r} has two slashes: write three, as in sqlite:///jobs.db")
    path = unquote(location.parts.path[1:])
    if path in ("", ":memory:"):
        raise ConfigError(
            f"the URL {url!r} names no file: write sqlite:///jobs.db, or memory:// to keep nothing"
        )
    if "\0" in path:
        raise ConfigError(f"the URL {url!r} holds a NUL character: remove it")
    synchronous = location.take("synchronous", "full").lower()
    if synchronous not in _SYNCHRONOUS:
        raise ConfigError(f"the URL {url!r} has synchronous={synchronous!r}: write full (durable) or normal")
    timeout = _seconds(location.take("timeout", "30"), url)
    location.done("sqlite:/// takes synchronous and timeout")
    return SqliteSettings(url, Path(path).absolute(), synchronous.upper(), timeout)


def _seconds(text: str, url: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise ConfigError(f"the URL {url!r} has timeout={text!r}: write a number of seconds, 0 to 3600")
    return seconds
