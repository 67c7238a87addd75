"""Cancel requests from any process reach the claims that this process holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dayjob.runtime.signals import CANCEL, Topic

if TYPE_CHECKING:
    from dayjob.broker.held_claims import HeldClaims
    from dayjob.broker.storage import Storage


class WatchCancels:
    """Reads the cancel requests after each ``CANCEL`` signal and fires the tokens of the held claims."""

    name = "watch-cancels"
    topics: tuple[Topic, ...] = (CANCEL,)

    def __init__(self, storage: Storage, claims: HeldClaims) -> None:
        self._storage = storage
        self._claims = claims

    async def run_once(self) -> None:
        storage = self._storage
        requests = await storage.read(lambda: storage.engine.cancel_requests()) if self._claims else ()
        self._claims.checked(requests)
