"""Opening an app for its workers: several of them on one event loop share its broker and its duties."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from dayjob.app import App
from dayjob.broker import Broker


class _Use:
    def __init__(self, was_open: bool) -> None:
        self.was_open = was_open
        self.workers = 0


_uses: WeakKeyDictionary[Broker, _Use] = WeakKeyDictionary()


@asynccontextmanager
async def opened(app: App) -> AsyncIterator[Broker]:
    """The app's broker, with duties. The last worker out stops those, and closes what the first opened."""
    broker = app.broker
    use = _uses.setdefault(broker, _Use(broker.is_open))
    use.workers += 1
    try:
        await app.opened()
        broker.start_duties()
        yield broker
    finally:
        use.workers -= 1
        if use.workers == 0:
            del _uses[broker]
            await (broker.stop_duties() if use.was_open else app.close())
