"""Opening: is this a server that can hold jobs, and is what it holds ours to read?"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dayjob.engines.redis.keys import LAYOUT
from dayjob.engines.redis.link import Link
from dayjob.engines.redis.scripts import script
from dayjob.errors import ConfigError, EngineUnavailable

_log = logging.getLogger("dayjob.redis")

OLDEST = (6, 2)
OPENING_PATIENCE = 5.0
"""Seconds at most: who opens a wrong address should know soon."""

_INDEXED = 250
"""How many dead jobs of the first layout are indexed at once: each is read with its payload."""

_looked_at: set[str] = set()


async def prepare(link: Link) -> None:
    """Check the server's version; check the layout's, or raise it to ours; log what endangers jobs there."""
    place = link.place
    patience = min(place.patience, OPENING_PATIENCE)
    info, layout = await link.ask(("INFO", "server"), ("GET", place.keys.layout), patience=patience)
    version = server_version(info)
    if version < OLDEST:
        raise ConfigError(
            f"{place.shown}: the server is version {'.'.join(map(str, version))}: "
            "dayjob needs Redis 6.2 or later, or Valkey"
        )
    if layout is None:
        _, layout = await link.ask(
            ("SETNX", place.keys.layout, LAYOUT), ("GET", place.keys.layout), patience=patience
        )
    if layout.isdigit() and int(layout) < LAYOUT:
        await _index_deaths(link)
        raising = ("EVAL", script("raise_layout").source, 1, place.keys.layout, LAYOUT)
        (layout,) = await link.ask(raising, patience=patience)
    if not layout.isdigit() or int(layout) > LAYOUT:
        raise ConfigError(
            f"{place.shown}: the jobs there have layout {layout.decode('utf-8', 'replace')} and this dayjob "
            f"knows up to {LAYOUT}: upgrade dayjob, or choose another ?prefix="
        )
    if place.shown not in _looked_at:
        _looked_at.add(place.shown)
        for danger in await dangers(link):
            _log.warning("%s: %s", place.shown, danger)


async def _index_deaths(link: Link) -> None:
    """Bring ``deaths`` up to date; several may do so at once."""
    cursor = b""
    while cursor := await link.tend("index_deaths", cursor, _INDEXED):
        pass


def server_version(info: bytes) -> tuple[int, ...]:
    for line in info.splitlines():
        name, _, value = line.partition(b":")
        if name == b"redis_version":
            return tuple(int(part) for part in value.split(b".") if part.isdigit())
    return OLDEST


async def dangers(link: Link) -> list[str]:
    """What in the server's settings may lose jobs; nothing where it does not tell its settings."""
    names = ("save", "appendonly", "maxmemory-policy")
    try:
        answers = await link.ask(*(("CONFIG", "GET", name) for name in names))
    except (ConfigError, EngineUnavailable):
        return []
    return settings_dangers({answer[0].decode(): answer[1].decode() for answer in answers if answer})


def settings_dangers(settings: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    if settings.get("save") == "" and settings.get("appendonly") == "no":
        found.append(
            'a restart of the server loses every job (save "" and appendonly no): set appendonly yes'
        )
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        found.append(f"a full server may drop all jobs (maxmemory-policy {policy}): set it to noeviction")
    return found
