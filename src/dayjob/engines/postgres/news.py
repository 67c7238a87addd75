"""What other processes are told: few notifications, sent late rather than often.

A notification takes a lock that all commits of the server share, so a busy queue must not send one per
insert. The first news of a topic goes out with the commit that makes it; what follows within
``WINDOW`` seconds is gathered and goes out at its end, in one message for all topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from dayjob.runtime import ids
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import Topic

WINDOW = 0.005
_LONGEST = 7_500
"""Bytes of a message; the server takes just under 8,000."""

_REMEMBERED = 1000

Item = tuple[str, str, int]
"""A topic's kind and name, and for a queue the lowest priority of what is new."""

WAIT = "wait"
"""The kind that says: somebody waits for this job."""

_KEYED = ("job", WAIT)

EVERYTHING: Item = ("*", "", 0)
RETURNED = -1
"""In place of a priority: jobs came back to the queue, somewhere in its order."""

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(tuple[str, list[Item]]).decode


class News:
    """Decides what is told now and what at the end of the window. ``send`` sends a message by itself."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self.sender = ids.new_key().hex()
        self._send = send
        self._told: dict[tuple[str, str], float] = {}
        self._held: dict[tuple[str, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def with_commit(self, items: Iterable[Item]) -> Iterator[str | None]:
        """Around a commit: the message that it is to carry, or None.

        The rest is held from its end on: whoever was told before would look in vain, and not hear again.
        """
        now = SYSTEM.elapsed()
        told, rest = [], []
        for item in items:
            if now - self._told.get(item[:2], -WINDOW) >= WINDOW:
                told.append(item)
                self._told[item[:2]] = now
            else:
                rest.append(item)
        if len(self._told) > _REMEMBERED:
            self._told.clear()
        try:
            yield message(self.sender, told) if told else None
        finally:
            self._hold(rest)

    def soon(self, items: Iterable[Item]) -> None:
        """Tell of what has been committed."""
        with self.with_commit(items) as told:
            if told is not None:
                self._send(told)

    def _hold(self, items: Iterable[Item]) -> None:
        for kind, name, place in items:
            topic = (kind, name)
            self._held[topic] = min(place, self._held.get(topic, place))
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW, self._flush)

    def _flush(self) -> None:
        self._timer = None
        held, self._held = self._held, {}
        now = SYSTEM.elapsed()
        self._told.update(dict.fromkeys(held, now))
        self._send(message(self.sender, [(*topic, place) for topic, place in held.items()]))

    def close(self) -> str | None:
        """What is still held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, {}
        return message(self.sender, [(*topic, place) for topic, place in held.items()]) if held else None


def message(sender: str, items: list[Item]) -> str:
    """The text of a message; one that would be too long says that anything may have happened."""
    text = _encode((sender, items))
    return (text if len(text) <= _LONGEST else _encode((sender, [EVERYTHING]))).decode()


def read(message: str) -> tuple[str, list[Item]]:
    """Who sent a message, and its items; what can't be read stands for everything."""
    try:
        sender, items = _decode(message)
        for kind, name, _ in items:
            if kind in _KEYED:
                bytes.fromhex(name)
    except (msgspec.MsgspecError, ValueError):
        return "", [EVERYTHING]
    return sender, items


def of_topic(topic: Topic, place: int = RETURNED) -> Item:
    kind, name = topic
    return (kind, name.hex() if isinstance(name, bytes) else name, place)
