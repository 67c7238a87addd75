"""Coalesces notifications, because each takes a lock that all commits of the server share.

The first notification of a topic is sent with the commit that causes it. Those that follow within ``WINDOW``
seconds are held and sent at its end, in one message for all topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from dayjob.engines.postgres.messages import Item, encode
from dayjob.runtime import ids
from dayjob.runtime.clock import SYSTEM

WINDOW = 0.005
_MAX_TOPICS = 1000


class Throttle:
    """Decides which topics are sent now and which at the end of the window.

    ``send`` sends a message outside of any commit. ``sender`` names this process in its messages.
    """

    def __init__(self, send: Callable[[str], None]) -> None:
        self.sender = ids.new_key().hex()
        self._send = send
        self._sent_at: dict[tuple[str, str], float] = {}
        self._held: dict[tuple[str, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def with_commit(self, items: Iterable[Item]) -> Iterator[str | None]:
        """Yield the message that the commit inside the block is to send, or None.

        Throttled topics are held from the end of the block. A notification before the commit would wake
        listeners that cannot see the rows yet.
        """
        now = SYSTEM.elapsed()
        sent, held = [], []
        for item in items:
            if now - self._sent_at.get(item[:2], -WINDOW) >= WINDOW:
                sent.append(item)
                self._sent_at[item[:2]] = now
            else:
                held.append(item)
        if len(self._sent_at) > _MAX_TOPICS:
            self._sent_at.clear()
        try:
            yield encode(self.sender, sent) if sent else None
        finally:
            self._hold(held)

    def announce(self, items: Iterable[Item]) -> None:
        """Notify of changes that are committed already."""
        with self.with_commit(items) as message:
            if message is not None:
                self._send(message)

    def _hold(self, items: Iterable[Item]) -> None:
        for kind, name, priority in items:
            topic = (kind, name)
            self._held[topic] = min(priority, self._held.get(topic, priority))
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._sent_at.update(dict.fromkeys(self._held, SYSTEM.elapsed()))
        self._send(self._take_held())

    def _take_held(self) -> str:
        held, self._held = self._held, {}
        return encode(self.sender, [(*topic, priority) for topic, priority in held.items()])

    def close(self) -> str | None:
        """Stop the timer. Return the message that is still to be sent, or None."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._take_held() if self._held else None
