"""The broker of a dashboard, opened by the first request that needs it.

A mounted application receives no startup or shutdown event from its host. This module needs none.
"""

from __future__ import annotations

import asyncio

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.engines.registry import without_password
from dayjob.errors import ConfigError
from dayjob.model.config import BrokerConfig


class LazyBroker:
    """An app, a broker, or a URL. ``close`` closes only a broker that was opened here."""

    def __init__(self, given: App | Broker | str) -> None:
        if isinstance(given, str):
            given = Broker(given, config=BrokerConfig(duties=False))
        elif not isinstance(given, App | Broker):
            raise ConfigError(f"{given!r} is a {type(given).__name__}: pass an App, a Broker or a URL")
        self._given = given
        self._opening = asyncio.Lock()
        self._opened = False

    @property
    def url(self) -> str:
        return self._given.url

    @property
    def public_url(self) -> str:
        """The URL without its password."""
        return without_password(self.url)

    async def broker(self) -> Broker:
        if isinstance(self._given, App):
            return await self._given.opened()
        if not self._given.is_open:
            async with self._opening:
                if not self._given.is_open:
                    await self._given.open()
                    self._opened = True
        return self._given

    async def close(self) -> None:
        if self._opened and isinstance(self._given, Broker):
            self._opened = False
            await self._given.close()
