"""The stored limits: written by hand, or declared by the code of an app. The newest write wins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.engines.base import BATCH
from dayjob.model.limits import LimitSettings, encode_settings

_log = logging.getLogger("dayjob.broker")


class Limits:
    """Writes the limits of one storage. Each change is logged."""

    def __init__(self, storage: RetryingStorage) -> None:
        self._storage = storage

    async def put(self, name: str, settings: LimitSettings | None) -> bool:
        """Store or remove a limit, and wake the jobs that have room now. Return whether there was one."""
        before = await self._stored()
        await self._write(name, before.get(name), settings)
        return name in before

    async def declare(self, app: str, declared: Mapping[str, LimitSettings]) -> None:
        """Store the declared limits that differ from the stored ones."""
        stored = await self._stored() if declared else {}
        for name, settings in declared.items():
            before = stored.get(name)
            if before is None or replace(before, app=app) != settings:
                await self._write(name, before, settings)

    async def _stored(self) -> dict[str, LimitSettings]:
        found = await self._storage.read(self._storage.engine.limits)
        return {limit.name: limit.settings for limit in found}

    async def _write(self, name: str, before: LimitSettings | None, settings: LimitSettings | None) -> None:
        value = None if settings is None else encode_settings(settings)
        while await self._storage.write(partial(self._storage.engine.set_limit, name, value)) == BATCH:
            pass
        _log.info("limit %r changed from %s to %s", name, _shown(before), _shown(settings))


def _shown(settings: LimitSettings | None) -> str:
    if settings is None:
        return "none"
    parts = [] if settings.running is None else [f"running={settings.running}"]
    if settings.rate is not None:
        parts.append(f"rate={settings.rate} per {settings.per / 1_000_000:g} s, burst={settings.burst}")
    return ", ".join(parts) or "no bound"
