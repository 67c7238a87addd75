"""Checks of the server when the engine opens; creation of the layout, or migration of an older one."""

from __future__ import annotations

import logging

from dayjob.engines.redis.client import Client, Command
from dayjob.engines.redis.diagnosis import risks
from dayjob.engines.redis.keys import LAYOUT, RENAMED
from dayjob.engines.redis.scripts import script
from dayjob.errors import ConfigError

_log = logging.getLogger("dayjob.redis")

OLDEST = (6, 2)
OPENING_TIMEOUT = 5.0
"""Seconds for which opening is repeated at most, so that a wrong address fails soon."""

_DEAD_INDEX_LAYOUT, _SPLIT_LAYOUT = 2, 4
_PAGE = 250
"""Dead jobs of layout 1 that one call indexes."""

_checked: set[str] = set()


async def prepare(client: Client) -> None:
    """Check server and layout, migrate an older layout, and log settings that may lose jobs."""
    settings = client.settings
    timeout = min(settings.timeout, OPENING_TIMEOUT)
    info, layout = await client.execute_retrying(
        ("INFO", "server"), ("GET", settings.keys.layout), timeout=timeout
    )
    version = server_version(info)
    if version < OLDEST:
        raise ConfigError(
            f"{settings.shown}: the server is version {'.'.join(map(str, version))}: "
            "dayjob needs Redis 6.2 or later, or Valkey"
        )
    if layout is None:
        _, layout = await client.execute_retrying(
            ("SETNX", settings.keys.layout, LAYOUT), ("GET", settings.keys.layout), timeout=timeout
        )
    if layout.isdigit() and int(layout) < LAYOUT:
        if int(layout) < _SPLIT_LAYOUT:
            await _in_pages(client, "split_records")
        if int(layout) < _DEAD_INDEX_LAYOUT:
            await _in_pages(client, "build_dead_index", _PAGE)
        layout = await _migrate(client, timeout)
    if not layout.isdigit() or int(layout) > LAYOUT:
        raise ConfigError(
            f"{settings.shown}: the jobs there have layout {layout.decode('utf-8', 'replace')} and this "
            f"dayjob supports up to {LAYOUT}: upgrade dayjob, or choose another ?prefix="
        )
    if settings.shown not in _checked:
        _checked.add(settings.shown)
        for risk in await risks(client):
            _log.warning("%s: %s", settings.shown, risk)


async def _in_pages(client: Client, verb: str, *arguments: int) -> None:
    """Run a script page by page.

    Several processes may do so at once, and after an interruption it starts again.
    """
    cursor = b""
    while cursor := await client.run_idempotent(verb, cursor, *arguments):
        pass


async def _migrate(client: Client, timeout: float) -> bytes:
    """Rename the keys and set the version, in one commit. Return the version that is then there."""
    keys = client.settings.keys
    names = [keys.named(name) for pair in RENAMED.items() for name in pair]
    migrate: Command = ("EVAL", script("migrate").source, 1 + len(names), keys.layout, *names, LAYOUT)
    layout: bytes = (await client.execute_retrying(migrate, timeout=timeout))[0]
    return layout


def server_version(info: bytes) -> tuple[int, ...]:
    for line in info.splitlines():
        name, _, value = line.partition(b":")
        if name == b"redis_version":
            return tuple(int(part) for part in value.split(b".") if part.isdigit())
    return OLDEST
