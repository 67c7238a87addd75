"""Wake-ups within one event loop: they say that something may have changed, never what it is.

An engine publishes; whoever waits listens, checks the store, and waits again. Listening starts before
the check, so no change falls between the two. A signal too many costs a look; one too few is a bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

Topic = tuple[str, str | bytes]

DUE: Topic = ("due", "")
"""The time at which the next job falls due or expires may have become earlier."""

CANCEL: Topic = ("cancel", "")
"""A running job may have got a cancel request."""


LEAD: Topic = ("lead", "")
"""This process has become the one that does the fleet's duties; told within the process only."""


def documents_topic(kind: str) -> Topic:
    """Notes of this kind may have been written."""
    return ("notes", kind)


ANY_QUEUE: Topic = ("queue", "")
"""A job may have become claimable on some queue."""


def queue_topic(name: str) -> Topic:
    """A job may have become claimable on this queue."""
    return ("queue", name)


def job_topic(key: bytes) -> Topic:
    """This job may have finished."""
    return ("job", key)


class Signals:
    """Who listens to what. Used on one event loop only."""

    def __init__(self) -> None:
        self._listeners: dict[Topic, set[asyncio.Event]] = {}
        self.on_listen: Callable[[Sequence[Topic]], None] | None = None
        """Gets the topics when somebody begins to listen: an engine may have to do something to hear them."""

    def publish(self, topics: Iterable[Topic]) -> None:
        if self._listeners:
            for topic in topics:
                for event in self._listeners.get(topic, ()):
                    event.set()
                if topic[0] == "queue":
                    for event in self._listeners.get(ANY_QUEUE, ()):
                        event.set()

    def publish_all(self) -> None:
        """Wake every listener: something changed, and the engine can't tell what."""
        for events in self._listeners.values():
            for event in events:
                event.set()

    @property
    def topics(self) -> list[Topic]:
        """What is listened to."""
        return list(self._listeners)

    @property
    def heard(self) -> bool:
        """Whether anybody listens at all."""
        return bool(self._listeners)

    def hears_of(self, kind: str) -> bool:
        """Whether anybody listens to a topic of that kind."""
        return any(topic[0] == kind for topic in self._listeners)

    @contextmanager
    def listen(self, topics: Iterable[Topic]) -> Iterator[asyncio.Event]:
        """An event that is set by each of the topics while the block runs; clear it before you check."""
        event = asyncio.Event()
        topics = tuple(topics)
        for topic in topics:
            self._listeners.setdefault(topic, set()).add(event)
        if self.on_listen is not None:
            self.on_listen(topics)
        try:
            yield event
        finally:
            for topic in topics:
                events = self._listeners.get(topic)
                if events is not None:
                    events.discard(event)
                    if not events:
                        del self._listeners[topic]
