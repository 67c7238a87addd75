"""The SlateDB engine: a queue in a bucket, without a server, for one process that writes."""

from __future__ import annotations

import os
from urllib.parse import unquote

from dayjob.engines.base import Engine
from dayjob.engines.registry import Location
from dayjob.engines.slatedb.copy_database import copy_database
from dayjob.engines.slatedb.engine import SlateEngine
from dayjob.engines.slatedb.reader import SlateReader
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.errors import ConfigError
from dayjob.runtime.clock import SYSTEM, Clock

_KNOWN = "flush_ms, takeover, readonly, timeout and beat, for buckets endpoint, and for s3:// region"
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT", "AWS_ALLOW_HTTP"),
    "gs": ("GOOGLE_BASE_URL", "GOOGLE_ALLOW_HTTP"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ALLOW_HTTP"),
}
"""The variables for the endpoint, and for one without encryption."""


def create(location: Location, clock: Clock | None) -> Engine:
    """``s3://bucket/prefix``, ``gs://``, ``az://``, or ``file:///absolute/folder``."""
    settings, clock = _settings(location), clock or SYSTEM
    return SlateReader(settings, clock) if settings.read_only else SlateEngine(settings, clock)


async def copy(source: Location, target: Location) -> int:
    """Copy a database to a new one. Return the number of jobs."""
    return await copy_database(_settings(source), _settings(target))


def _settings(location: Location) -> SlateSettings:
    scheme, url = location.parts.scheme, location.shown
    path = unquote(location.parts.path)
    if "\0" in path:
        raise ConfigError(f"the URL {url!r} holds a NUL character: remove it")
    if scheme == "file":
        store, path = "file:///", _folder(location, path)
    else:
        if not location.parts.netloc:
            raise ConfigError(f"the URL {url!r} names no bucket: write {scheme}://bucket/prefix")
        store, path = f"{scheme}://{location.parts.netloc}", path.strip("/") or "dayjob"

    def number(name: str, default: str, least: float, most: float) -> float:
        default = os.environ.get(f"DAYJOB_SLATEDB_{name.upper()}", default)
        return location.number(name, default, least, most)

    local = scheme == "file"
    settings = SlateSettings(
        url, store, path,
        flush_ms=int(number("flush_ms", "5" if local else "100", 1, 60_000)),
        timeout=number("timeout", "30", 0.1, 3600),
        beat=number("beat", "10" if local else "30", 0.1, 3600),
        take_over=location.choice("takeover", "0", "1") == "1",
        read_only=location.choice("readonly", "0", "1") == "1",
        variables=() if local else _variables(location, scheme),
    )  # fmt: skip
    location.done(f"{scheme}:// takes {_KNOWN}")
    return settings


def _folder(location: Location, path: str) -> str:
    if location.parts.netloc:
        raise ConfigError(
            f"the URL {location.shown!r} has two slashes: write three, as in file:///var/lib/jobs"
        )
    path = path.rstrip("/")
    if not path:
        raise ConfigError(f"the URL {location.shown!r} names no folder: write file:///var/lib/jobs")
    return path


def _variables(location: Location, scheme: str) -> tuple[tuple[str, str], ...]:
    """Return the options of the URL for the store, as environment variables of the store."""
    region, endpoint = location.take("region", ""), location.take("endpoint", "")
    if region and scheme != "s3":
        raise ConfigError(f"the URL {location.shown!r} has a region: only s3:// takes one")
    found = {}
    if region:
        found["AWS_REGION"] = region
    if endpoint:
        variable, allow_http = _ENDPOINTS[scheme]
        found[variable] = endpoint
        if endpoint.startswith("http://"):
            found[allow_http] = "true"
    return tuple(found.items())
