"""What the pages of one dashboard share: the read model, the live feeds, and the bulk work under way."""

from __future__ import annotations

from starlette.requests import Request

from dayjob.broker import Broker
from dayjob.dashboard.chores import Chores
from dayjob.dashboard.events import Feeds
from dayjob.dashboard.source import Source
from dayjob.inspect.inspector import Inspector
from dayjob.inspect.redaction import Redaction

PATIENCE = 0.1
"""Seconds after which a page looks through no more records, and shows what it has."""

HISTORY_FRESH = 10.0
"""Seconds for which the last hour's samples are not read again."""


class Desk:
    def __init__(self, source: Source, redaction: Redaction, *, read_only: bool) -> None:
        self.source = source
        self.redaction = redaction
        self.read_only = read_only
        self.feeds = Feeds()
        self.chores = Chores()
        self._inspector: Inspector | None = None

    async def broker(self) -> Broker:
        return await self.source.broker()

    async def inspector(self) -> Inspector:
        broker = await self.broker()
        if self._inspector is None or self._inspector.broker is not broker:
            self._inspector = Inspector(broker, self.redaction, history_fresh=HISTORY_FRESH)
        return self._inspector

    async def close(self) -> None:
        self.feeds.stop()
        await self.chores.stop()
        await self.source.close()


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk
