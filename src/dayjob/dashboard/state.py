"""The state that the pages of one dashboard share: broker, read model, live feeds, bulk operations."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.dashboard.bulk import BulkOperations
from dayjob.dashboard.feeds import Feeds
from dayjob.engines.registry import without_password
from dayjob.errors import ConfigError
from dayjob.inspect import Inspector, Redaction
from dayjob.model.config import BrokerConfig
from dayjob.model.job import Job

READ_BUDGET = 0.1
"""Seconds after which a page starts no further read, and shows the results so far."""

SAMPLE_BUDGET = 0.5
"""The same for the statistics of tasks, which are read once and are not live."""

HISTORY_MAX_AGE = 10.0
"""Seconds for which the samples of the last hour are cached."""


class DashboardState:
    """The broker is an app's, a given one, or one for a URL. The first request that needs it opens it.

    A mounted application receives no startup or shutdown event from its host, and needs none. ``close``
    closes only a broker that was opened here.
    """

    def __init__(self, given: App | Broker | str, redaction: Redaction, *, read_only: bool) -> None:
        if isinstance(given, str):
            given = Broker(given, config=BrokerConfig(duties=False))
        elif not isinstance(given, App | Broker):
            raise ConfigError(f"{given!r} is a {type(given).__name__}: pass an App, a Broker or a URL")
        self._given = given
        self._opening = asyncio.Lock()
        self._opened = False
        self.redaction = redaction
        self.read_only = read_only
        self.feeds = Feeds()
        self.bulk = BulkOperations()
        self._inspector: Inspector | None = None

    @property
    def public_url(self) -> str:
        """The URL without its password."""
        return without_password(self._given.url)

    async def broker(self) -> Broker:
        if isinstance(self._given, App):
            return await self._given.opened()
        if not self._given.is_open:
            async with self._opening:
                if not self._given.is_open:
                    await self._given.open()
                    self._opened = True
        return self._given

    async def inspector(self) -> Inspector:
        broker = await self.broker()
        if self._inspector is None or self._inspector.broker is not broker:
            self._inspector = Inspector(broker, self.redaction, history_max_age=HISTORY_MAX_AGE)
        return self._inspector

    def check_arguments(self, job: Job, payload: bytes) -> None:
        """Raise ``BadPayload`` if the app has the job's task and it does not accept the arguments."""
        task = self._given.find(job) if isinstance(self._given, App) else None
        if task is not None and task.arguments is not None:
            task.arguments.decode(payload)

    async def close(self) -> None:
        self.feeds.stop()
        await self.bulk.stop()
        if self._opened and isinstance(self._given, Broker):
            self._opened = False
            await self._given.close()


def state_of(request: Request) -> DashboardState:
    state: DashboardState = request.app.state.dashboard
    return state
