"""The state that the pages of one dashboard share: read model, live feeds, running bulk operations."""

from __future__ import annotations

from starlette.requests import Request

from dayjob.broker import Broker
from dayjob.dashboard.bulk import BulkOperations
from dayjob.dashboard.events import Feeds
from dayjob.dashboard.lazy_broker import LazyBroker
from dayjob.inspect import Inspector, Redaction

READ_BUDGET = 0.1
"""Seconds after which a page starts no further read, and shows the results so far."""

HISTORY_MAX_AGE = 10.0
"""Seconds for which the samples of the last hour are cached."""


class DashboardState:
    def __init__(self, source: LazyBroker, redaction: Redaction, *, read_only: bool) -> None:
        self.source = source
        self.redaction = redaction
        self.read_only = read_only
        self.feeds = Feeds()
        self.bulk = BulkOperations()
        self._inspector: Inspector | None = None

    async def broker(self) -> Broker:
        return await self.source.broker()

    async def inspector(self) -> Inspector:
        broker = await self.broker()
        if self._inspector is None or self._inspector.broker is not broker:
            self._inspector = Inspector(broker, self.redaction, history_max_age=HISTORY_MAX_AGE)
        return self._inspector

    async def close(self) -> None:
        self.feeds.stop()
        await self.bulk.stop()
        await self.source.close()


def state_of(request: Request) -> DashboardState:
    state: DashboardState = request.app.state.dashboard
    return state
