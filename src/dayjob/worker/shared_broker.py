"""The broker of an app's workers: all workers on one event loop share it, and its duties."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from msgspec import Struct

from dayjob.app import App
from dayjob.broker import Broker


class _Users(Struct):
    was_open: bool
    workers: int = 0


_users: WeakKeyDictionary[Broker, _Users] = WeakKeyDictionary()


@asynccontextmanager
async def shared_broker(app: App) -> AsyncIterator[Broker]:
    """Open the app's broker, with duties unless its configuration has none.

    The last worker stops the duties, and closes the broker if the first worker opened it.
    """
    broker = app.broker
    users = _users.setdefault(broker, _Users(broker.is_open))
    users.workers += 1
    try:
        await app.opened()
        if app.config.duties:
            broker.start_duties()
        yield broker
    finally:
        users.workers -= 1
        if users.workers == 0:
            del _users[broker]
            await (broker.stop_duties() if users.was_open else app.close())
