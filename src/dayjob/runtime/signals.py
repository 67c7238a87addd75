"""Wake-ups within one event loop. A signal means that something may have changed.

An engine publishes. A waiter listens, checks the store, and waits again. It listens before the check, so no
change is missed between the two. One signal too many costs a check; one too few is a bug.

A new job that was announced by another process concerns one of the claims that wait in the whole fleet. In a
large fleet each process therefore draws a random number, its lot, and few of them look: some at once, and
some a little later, in case the first ones have ended or are busy. A woken claim that leaves jobs wakes
further ones, and the leader repeats the signal of jobs that stay pending (``Engine.wake_others``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from dayjob.runtime import entropy

Topic = tuple[str, str | bytes]

DUE: Topic = ("due", "")
"""The next due time or expiry of a job may have become earlier."""

CANCEL: Topic = ("cancel", "")
"""A running job may have a new cancel request."""


LEAD_DOCUMENT: Topic = ("documents", "duty")
"""The leader may have released the lead."""

LEAD: Topic = ("lead", "")
"""This process has become the leader, which runs the duties. Published within the process only."""


def documents_topic(kind: str) -> Topic:
    """Documents of this kind may have been written."""
    return ("documents", kind)


ANY_QUEUE: Topic = ("queue", "")
"""A job may have become claimable on some queue."""


def queue_topic(name: str) -> Topic:
    """A job may have become claimable on this queue."""
    return ("queue", name)


def job_topic(key: bytes) -> Topic:
    """This job may have finished."""
    return ("job", key)


WOKEN = ((4, 0.0), (8, 0.02), (16, 0.1))
"""How many claims of a large fleet look after a signal on average, and after how many seconds."""

FEW = WOKEN[-1][0]
"""A fleet with at most so many waiting workers is not large: all of them look."""


def look_after(waiting: float, lot: float) -> float | None:
    """Return seconds until one of ``waiting`` workers looks, with this lot from 0 to 1. None: not at all."""
    if waiting <= FEW:
        return 0.0
    return next((delay for number, delay in WOKEN if lot * waiting < number), None)


class Signals:
    """The listeners by topic. Used on one event loop only."""

    def __init__(self) -> None:
        self._listeners: dict[Topic, set[asyncio.Event]] = {}
        self.on_listen: Callable[[Sequence[Topic]], None] | None = None
        """Called with the topics of a new listener, so that an engine can subscribe to them."""
        self.waiting: Callable[[str], int] = lambda queue: 0
        """Returns how many workers of the fleet wait for jobs of a queue, as of the last read of the lead."""

    def publish(self, topics: Iterable[Topic]) -> None:
        if self._listeners:
            for topic in topics:
                for event in self._listeners.get(topic, ()):
                    event.set()
                if topic[0] == "queue":
                    for event in self._listeners.get(ANY_QUEUE, ()):
                        event.set()

    def publish_received(self, topics: Iterable[Topic]) -> None:
        """Publish the topics that another process has announced. Of a large fleet, few claims look."""
        for topic in topics:
            kind, name = topic
            if kind == "queue" and isinstance(name, str):
                here = len(self._listeners.get(topic, ())) + len(self._listeners.get(ANY_QUEUE, ()))
                delay = look_after(self.waiting(name) / here, entropy.fraction()) if here else None
                if delay:
                    asyncio.get_running_loop().call_later(delay, self.publish, [topic])
                if delay != 0.0:
                    continue
            self.publish([topic])

    def publish_all(self) -> None:
        """Wake every listener: something changed, and its topics are unknown."""
        for events in self._listeners.values():
            for event in events:
                event.set()

    def look_again(self) -> None:
        """Wake the listeners in case a signal was missed. A follower reads the lead at its own intervals."""
        self.publish(topic for topic in self.topics if topic != LEAD_DOCUMENT)

    @property
    def topics(self) -> list[Topic]:
        return list(self._listeners)

    def has_listener(self, topic: Topic) -> bool:
        return topic in self._listeners

    def has_listeners(self, kind: str) -> bool:
        return any(topic[0] == kind for topic in self._listeners)

    @contextmanager
    def listen(self, topics: Iterable[Topic]) -> Iterator[asyncio.Event]:
        """Yield an event that each of the topics sets during the block. Clear it before each check."""
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
