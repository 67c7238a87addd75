"""From a URL to its engine. An engine's module, and with it the driver, is imported on first use."""

from __future__ import annotations

from importlib import import_module
from urllib.parse import SplitResult, parse_qsl, urlsplit

from msgspec import Struct

from dayjob.clock import Clock
from dayjob.engines.base import Engine
from dayjob.errors import ConfigError


class Entry(Struct, frozen=True):
    module: str
    extra: str | None = None


ENGINES: dict[str, Entry] = {
    "az": Entry("dayjob.engines.slatedb", "slatedb"),
    "file": Entry("dayjob.engines.slatedb", "slatedb"),
    "gs": Entry("dayjob.engines.slatedb", "slatedb"),
    "memory": Entry("dayjob.engines.memory"),
    "s3": Entry("dayjob.engines.slatedb", "slatedb"),
    "sqlite": Entry("dayjob.engines.sqlite"),
}
"""Each module has ``create(url: Location, clock: Clock) -> Engine``."""


class Location(Struct, frozen=True):
    """A URL taken apart; options are read with ``take`` and what is left over is refused."""

    url: str
    parts: SplitResult
    options: dict[str, str]

    def take(self, name: str, default: str) -> str:
        return self.options.pop(name, default)

    def done(self, known: str) -> None:
        """Refuse the options that nobody took."""
        if self.options:
            name = next(iter(self.options))
            raise ConfigError(f"the URL {self.url!r} has an unknown option {name!r}: {known}")


def create_engine(url: str, clock: Clock) -> Engine:
    """The engine for the URL, not yet open."""
    location = parse(url)
    entry = ENGINES[location.parts.scheme]
    try:
        module = import_module(entry.module)
    except ModuleNotFoundError as error:
        if entry.extra is None:
            raise
        raise ConfigError(
            f"{location.parts.scheme}:// needs {error.name}, which is not installed: "
            f"run  pip install 'dayjob[{entry.extra}]'"
        ) from error
    engine: Engine = module.create(location, clock)
    return engine


def parse(url: str) -> Location:
    if not isinstance(url, str):
        raise ConfigError(f"the URL {url!r} is a {type(url).__name__}: pass text such as 'sqlite:///jobs.db'")
    known = ", ".join(f"{scheme}://" for scheme in sorted(ENGINES))
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the URL {url!r} can't be read ({error}): pass one of {known}") from None
    if parts.scheme not in ENGINES or not url.lower().startswith(f"{parts.scheme}://"):
        raise ConfigError(f"the URL {url!r} names no known engine: it should start with one of {known}")
    if parts.fragment or any(character in url for character in "\n\r\t"):
        raise ConfigError(f"the URL {url!r} holds a '#', a tab or a line break: write it as %23, %09 or %0A")
    options = parse_qsl(parts.query, keep_blank_values=True)
    names = [name for name, _ in options]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the URL {url!r} has the option {name!r} twice: write it once")
    return Location(url, parts, dict(options))
