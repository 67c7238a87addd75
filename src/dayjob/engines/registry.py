"""Creates the engine for a URL. The engine's module, and with it the driver, is imported on first use."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib import import_module
from math import nan
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from dayjob.engines.base import Engine
from dayjob.errors import ConfigError
from dayjob.runtime.clock import Clock

_PASSWORD = re.compile(r"(?<=://)([^:@/?#]*):(?:[^?#]*|(?!\d*[/?#]).*)@")
"""Matches up to the last @ of the host part. A password with a raw ? or # extends further, a port not."""

_USER_ALONE = re.compile(r"^(rediss?://)[^:@/?#]+@", re.IGNORECASE)
"""Matches the user of a Redis URL without a password: it is often the password itself."""

_OPTION = re.compile(r"([?&])([^=&#]+)(=?)([^&#]*)")

_SHOWN_OPTIONS = frozenset(
    {
        "beat", "ca_certs", "connections", "db", "dbname", "endpoint", "flush_ms", "host",
        "migration_timeout", "mode", "pgbouncer", "poll", "port", "prefix", "readonly", "region", "schema",
        "sslmode", "synchronous", "takeover", "target_session_attrs", "timeout", "user",
    }
)  # fmt: skip
"""The options whose values are no secrets. The values of others, also of unknown ones, are not shown."""


class Entry(Struct, frozen=True):
    module: str
    extra: str | None = None


ENGINES: dict[str, Entry] = {
    "az": Entry("dayjob.engines.slatedb", "slatedb"),
    "file": Entry("dayjob.engines.slatedb", "slatedb"),
    "gs": Entry("dayjob.engines.slatedb", "slatedb"),
    "memory": Entry("dayjob.engines.memory"),
    "postgres": Entry("dayjob.engines.postgres", "postgres"),
    "postgresql": Entry("dayjob.engines.postgres", "postgres"),
    "redis": Entry("dayjob.engines.redis", "redis"),
    "rediss": Entry("dayjob.engines.redis", "redis"),
    "s3": Entry("dayjob.engines.slatedb", "slatedb"),
    "sqlite": Entry("dayjob.engines.sqlite"),
    "unix": Entry("dayjob.engines.redis", "redis"),
}
"""Each module has ``create(location, clock) -> Engine``.

It may have ``layout(location) -> Layout`` and ``copy(source, target) -> jobs``.
"""


class Layout(Protocol):
    """The tables in which an engine stores its jobs."""

    async def script(self, since: int | None = None) -> str:
        """Return the script from a version, or from the stored one, to the newest; 0 creates them."""

    async def apply(self, on_progress: Callable[[str], None]) -> tuple[int, int]:
        """Migrate them. Return the versions before and after, 0 for none."""


class Location(Struct, frozen=True):
    """A parsed URL. Options are read with ``take``; ``done`` refuses the rest."""

    url: str
    parts: SplitResult
    options: dict[str, str]

    @property
    def shown(self) -> str:
        """The URL without its password, for messages."""
        return without_password(self.url)

    def __repr__(self) -> str:
        return f"Location({self.shown!r})"

    def take(self, name: str, default: str) -> str:
        return self.options.pop(name, default)

    def number(self, name: str, default: str, least: float, most: float) -> float:
        """Take an option that is a number within these bounds."""
        text = self.take(name, default)
        try:
            number = float(text)
        except ValueError:
            number = nan
        if not least <= number <= most:
            raise ConfigError(
                f"the URL {self.shown!r} has {name}={text!r}: write a number from {least:g} to {most:g}"
            )
        return number

    def choice(self, name: str, *known: str) -> str:
        """Take an option that is one of these words, in upper or lower case. The first is the default."""
        value = self.take(name, known[0]).lower()
        if value not in known:
            accepted = f"{', '.join(known[:-1])} or {known[-1]}"
            raise ConfigError(f"the URL {self.shown!r} has {name}={value!r}: write {accepted}")
        return value

    def done(self, known: str) -> None:
        """Raise ``ConfigError`` for an option that was not taken."""
        if self.options:
            name = next(iter(self.options))
            given = f"{name}=" in self.parts.query
            which = repr(name) if given else "without a value"  # It may be a misplaced secret.
            raise ConfigError(f"the URL {self.shown!r} has an unknown option {which}: {known}")


def without_password(url: str) -> str:
    """Return the URL as it may be shown and logged."""
    url, hash, _ = _USER_ALONE.sub(r"\1***@", _PASSWORD.sub(r"\1:***@", url)).partition("#")
    return _OPTION.sub(_shown_option, url) + hash + "***" * bool(hash)


def _shown_option(option: re.Match[str]) -> str:
    before, name, equals, value = option.groups()
    if name in _SHOWN_OPTIONS:
        return f"{before}{name}{equals}{value}"
    return f"{before}{name}=***" if equals else f"{before}***"


def absolute(url: str) -> str:
    """Return the URL with an absolute path. A relative one would name another file after ``os.chdir``."""
    parts = parse(url).parts
    path = unquote(parts.path[1:])
    if parts.scheme != "sqlite" or parts.netloc or path in ("", ":memory:") or Path(path).is_absolute():
        return url
    return url.replace(parts.path, f"/{quote(str(Path(path).absolute()))}", 1)


def create_engine(url: str, clock: Clock | None) -> Engine:
    """Return the engine for the URL, not yet open."""
    location = parse(url)
    engine: Engine = _module(location).create(location, clock)
    return engine


def find_layout(url: str) -> Layout | None:
    """Return the layout of the store at the URL, or None if its engine creates no tables beforehand."""
    location = parse(url)
    module = _module(location)
    make: Callable[[Location], Layout] | None = getattr(module, "layout", None)
    return None if make is None else make(location)


async def copy_store(source: str, target: str) -> int:
    """Copy the store to a new one of the same engine. Return the number of jobs."""
    here, there = parse(source), parse(target)
    module = _module(here)
    copy: Callable[[Location, Location], Awaitable[int]] | None = getattr(module, "copy", None)
    if copy is None or _module(there) is not module:
        raise ConfigError(
            f"{here.shown} can't be copied to {there.shown}: only object storage can, to object storage; for "
            "other stores use the tools of their database"
        )
    return await copy(here, there)


def _module(location: Location) -> Any:
    """Import the engine's module and its driver, which is an extra."""
    entry = ENGINES[location.parts.scheme]
    try:
        return import_module(entry.module)
    except ModuleNotFoundError as error:
        if entry.extra is None:
            raise
        raise ConfigError(
            f"{location.parts.scheme}:// needs {error.name}, which is not installed: "
            f"run  pip install 'dayjob[{entry.extra}]'"
        ) from error


def _without_driver(scheme: str) -> str:
    """Return the scheme of a URL of SQLAlchemy, such as ``postgresql+asyncpg``, without the driver."""
    engine, _, driver = scheme.partition("+")
    return engine if driver and engine in ("postgres", "postgresql", "sqlite") else scheme


def parse(url: str) -> Location:
    if not isinstance(url, str):
        raise ConfigError(f"the URL {url!r} is a {type(url).__name__}: pass text such as 'sqlite:///jobs.db'")
    shown = without_password(url)
    known = ", ".join(f"{scheme}://" for scheme in sorted(ENGINES))
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the URL {shown!r} can't be read ({error}): pass one of {known}") from None
    scheme = _without_driver(parts.scheme)
    if scheme not in ENGINES or not url.lower().startswith(f"{parts.scheme}://"):
        file = (
            f"; for a SQLite file write 'sqlite:///{shown}'" if shown and not {":", "?"} & set(shown) else ""
        )
        raise ConfigError(
            f"the URL {shown!r} names no known engine: it should start with one of {known}{file}"
        )
    if parts.fragment or any(character in url for character in "\n\r\t"):
        raise ConfigError(
            f"the URL {shown!r} holds a '#', a tab or a line break: write it as %23, %09 or %0A"
        )
    try:
        (parts.netloc + parts.query).encode()  # A path may be that of a file whose name is no UTF-8.
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the URL {shown!r} has a character that UTF-8 lacks ({error.reason}): write it as UTF-8"
        ) from None
    parts = parts._replace(scheme=scheme)
    options = parse_qsl(parts.query, keep_blank_values=True)
    names = [name for name, _ in options]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the URL {shown!r} has the option {name!r} twice: write it once")
    return Location(url, parts, dict(options))
