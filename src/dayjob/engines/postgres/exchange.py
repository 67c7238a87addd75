"""Between the waiters of this process and those of others: what happened here is told there, and back.

A job that ends is announced only if somebody waits for it: a process that begins to wait says so, and the
others remember it for a while. Its own looks soon after close the gap in which that word is on its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from dayjob.engines.base import Insertion
from dayjob.engines.postgres import news
from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.cursors import LAST_ID, START, Cursors
from dayjob.engines.postgres.listener import Listener
from dayjob.engines.postgres.news import RETURNED, WAIT, Item, News
from dayjob.engines.postgres.place import Place
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.statements import Statements
from dayjob.errors import DayjobError
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import DUE, Signals, Topic, job_topic, queue_topic

_log = logging.getLogger("dayjob.engines.postgres")

REMEMBERED = 60.0
"""Seconds for which others' waiting is remembered; it is said again before that."""

LOOKS = (0.03, 0.2, 1.0)
"""Seconds after which a new waiter looks again."""


class Exchange:
    """The signals of one engine, carried to and from other processes. Used on one event loop."""

    def __init__(
        self, place: Place, signals: Signals, courier: Courier, statements: Statements, cursors: Cursors
    ) -> None:
        self.channel = place.channel
        self._signals = signals
        self._courier = courier
        self._notify = statements["notify"]
        self._cursors = cursors
        self._news = News(self._send)
        self._listener = Listener(place, signals, self._heard)
        self._sending: set[asyncio.Task[None]] = set()
        self._awaited: dict[bytes, float] = {}
        self._reminder: asyncio.TimerHandle | None = None
        signals.on_listen = self._somebody_listens

    async def ready(self) -> None:
        """To be awaited before a look after which somebody may wait for a change."""
        await self._listener.ready()

    async def close(self) -> None:
        self._signals.on_listen = None
        if self._reminder is not None:
            self._reminder.cancel()
        held = self._news.close()
        if held is not None:
            self._send(held)
        if self._sending:
            await asyncio.wait(self._sending)
        await self._listener.stop()

    # Out.

    def with_commit(self, items: Iterable[Item]) -> AbstractContextManager[str | None]:
        """Around a commit: the message that it is to carry; None if it is told later, or nothing is."""
        return self._news.with_commit(items)

    def message(self, topics: Sequence[Topic]) -> str:
        """A message that everybody is to hear, this process included, when a foreign commit sends it."""
        return news.message("", [news.of_topic(topic) for topic in topics])

    def arrived(self, jobs: Sequence[Insertion]) -> None:
        """Jobs were stored; other processes were told with the commit."""
        topics: set[Topic] = {queue_topic(job.queue) for job in jobs}
        if any(_waits(job) for job in jobs):
            topics.add(DUE)
        for job in jobs:
            self._cursors.arrived(job.queue, (job.priority, job.key))
        self._signals.publish(topics)

    def returned(self, queues: Iterable[str]) -> None:
        """Jobs came back to the queues, somewhere in their order."""
        topics = [queue_topic(queue) for queue in queues]
        if not topics:
            return
        for queue in queues:
            self._cursors.arrived(queue, START)
        self._signals.publish(topics)
        self._news.soon([news.of_topic(topic) for topic in topics])

    def happened(self, topic: Topic) -> None:
        self._signals.publish([topic])
        self._news.soon([news.of_topic(topic)])

    def finished(self, keys: Sequence[bytes]) -> None:
        """The jobs have finished: whoever waits for one is told."""
        if self._signals.has_listeners("job"):
            self._signals.publish(map(job_topic, keys))
        if self._awaited:
            waited_for = [key for key in keys if key in self._awaited]
            if waited_for:
                for key in waited_for:
                    del self._awaited[key]
                self._news.soon([news.of_topic(job_topic(key)) for key in waited_for])

    def _send(self, message: str) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, message: str) -> None:
        async def notify(connection: Connection) -> None:
            await connection.fetch(self._notify, self.channel, message)

        try:
            await self._courier.carry(notify)
        except DayjobError as error:
            _log.debug("a notification was not sent; others will look by themselves: %s", error)

    # In.

    def _heard(self, message: str) -> None:
        sender, items = news.read(message)
        if sender == self._news.sender:
            return
        topics: list[Topic] = []
        for kind, name, place in items:
            if kind == "*":
                self._cursors.drop_all()
                self._signals.publish_all()
            elif kind == WAIT:
                self._awaited[bytes.fromhex(name)] = SYSTEM.elapsed() + REMEMBERED
            elif kind == "job":
                topics.append((kind, bytes.fromhex(name)))
            else:
                topics.append((kind, name))
                if kind == "queue":
                    self._cursors.arrived(name, START if place == RETURNED else (place, LAST_ID))
        self._signals.publish(topics)

    # Waiting here.

    def _somebody_listens(self, topics: Sequence[Topic]) -> None:
        self._listener.start()
        keys = [name for kind, name in topics if kind == "job" and isinstance(name, bytes)]
        if keys:
            self._news.soon([(WAIT, key.hex(), 0) for key in keys])
            loop = asyncio.get_running_loop()
            for delay in LOOKS:
                loop.call_later(delay, self._signals.publish, list(map(job_topic, keys)))
            if self._reminder is None:
                self._reminder = loop.call_later(REMEMBERED / 2, self._remind)

    def _remind(self) -> None:
        """Say again for which jobs this process waits, and forget the waits of others that have ended."""
        self._reminder = None
        now = SYSTEM.elapsed()
        self._awaited = {key: until for key, until in self._awaited.items() if until > now}
        keys = [name for kind, name in self._signals.topics if kind == "job" and isinstance(name, bytes)]
        if keys:
            self._news.soon([(WAIT, key.hex(), 0) for key in keys])
        if keys or self._awaited:
            self._reminder = asyncio.get_running_loop().call_later(REMEMBERED / 2, self._remind)


def news_of(jobs: Sequence[Insertion]) -> list[Item]:
    """What others are told of new jobs: which queues have some, and of which priority at best."""
    queues: dict[str, int] = {}
    for job in jobs:
        queues[job.queue] = min(job.priority, queues.get(job.queue, job.priority))
    items: list[Item] = [("queue", queue, priority) for queue, priority in queues.items()]
    return [*items, news.of_topic(DUE)] if any(_waits(job) for job in jobs) else items


def _waits(job: Insertion) -> bool:
    """Whether the job may have a time at which it is due or expires."""
    times = (job.run_at, job.expires_at, job.expires_in)
    return bool(job.delay) or any(time is not None for time in times)
