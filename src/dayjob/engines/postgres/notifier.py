"""Carries signals between processes: changes made here are sent, changes made elsewhere are published here.

The end of a job is sent only if another process waits for it. A process that starts to wait announces the
job, and the others remember that for a while. Its own checks soon after cover the time until the announcement
has arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from dayjob.engines.base import Insertion
from dayjob.engines.postgres import messages
from dayjob.engines.postgres.listener import Listener
from dayjob.engines.postgres.messages import RETURNED, WAIT, Item, topic_item
from dayjob.engines.postgres.pool import Connection, Pool
from dayjob.engines.postgres.scan_hints import LAST_ID, START, ScanHints
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import Statements
from dayjob.engines.postgres.throttle import Throttle
from dayjob.errors import DayjobError
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import DUE, Signals, Topic, job_topic, queue_topic

_log = logging.getLogger("dayjob.engines.postgres")

WAIT_EXPIRY = 60.0
"""Seconds for which an announced wait of another process is remembered. It is announced again before."""

WAIT_CHECKS = (0.03, 0.2, 1.0)
"""Seconds after which a new wait checks its job again."""


class Notifier:
    """The notifications of one engine, sent and received. Used on one event loop."""

    def __init__(
        self,
        settings: PostgresSettings,
        signals: Signals,
        pool: Pool,
        statements: Statements,
        hints: ScanHints,
    ) -> None:
        self.channel = settings.channel
        self._signals = signals
        self._pool = pool
        self._notify = statements["notify"]
        self._hints = hints
        self._throttle = Throttle(self._send)
        self._listener = Listener(settings, signals, self._receive)
        self._sending: set[asyncio.Task[None]] = set()
        self._awaited: dict[bytes, float] = {}
        self._wait_timer: asyncio.TimerHandle | None = None
        signals.on_listen = self._on_listen

    async def ready(self) -> None:
        """Wait until this process listens. Call it before a read after which a caller may wait."""
        await self._listener.ready()

    async def close(self) -> None:
        self._signals.on_listen = None
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        held = self._throttle.close()
        if held is not None:
            self._send(held)
        if self._sending:
            await asyncio.wait(self._sending)
        await self._listener.stop()

    # Sending.

    def with_commit(self, jobs: Sequence[Insertion]) -> AbstractContextManager[str | None]:
        """Yield the message that a commit of new jobs is to send; None if it is sent later, or none is."""
        return self._throttle.with_commit(_job_items(jobs))

    def message(self, topics: Sequence[Topic]) -> str:
        """Return a message that every process receives, this one included."""
        return messages.encode("", [topic_item(topic) for topic in topics])

    def jobs_inserted(self, jobs: Sequence[Insertion]) -> None:
        """Publish new jobs here. Other processes are notified by the commit."""
        topics: set[Topic] = {queue_topic(job.queue) for job in jobs}
        if any(_has_due_time(job) for job in jobs):
            topics.add(DUE)
        for job in jobs:
            self._hints.job_pending(job.queue, (job.priority, job.key))
        self._signals.publish(topics)

    def jobs_returned(self, queues: Iterable[str]) -> None:
        """Announce that jobs came back to the queues, anywhere in their order."""
        topics = [queue_topic(queue) for queue in queues]
        if not topics:
            return
        for queue in queues:
            self._hints.job_pending(queue, START)
        self.publish(topics)

    def publish(self, topics: Sequence[Topic]) -> None:
        """Publish the topics here, and notify other processes."""
        self._signals.publish(topics)
        self._throttle.announce([topic_item(topic) for topic in topics])

    def jobs_finished(self, keys: Sequence[bytes]) -> None:
        """Wake the waits for these jobs, here and in other processes."""
        if self._signals.has_listeners("job"):
            self._signals.publish(map(job_topic, keys))
        if self._awaited:
            awaited = [key for key in keys if key in self._awaited]
            if awaited:
                for key in awaited:
                    del self._awaited[key]
                self._throttle.announce([topic_item(job_topic(key)) for key in awaited])

    def _send(self, message: str) -> None:
        task = asyncio.get_running_loop().create_task(self._run_notify(message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _run_notify(self, message: str) -> None:
        async def notify(connection: Connection) -> None:
            await connection.fetch(self._notify, self.channel, message)

        try:
            await self._pool.run_retrying(notify)
        except DayjobError as error:
            _log.debug("a notification was not sent; other processes find the change by polling: %s", error)

    # Receiving.

    def _receive(self, message: str) -> None:
        sender, items = messages.decode(message)
        if sender == self._throttle.sender:
            return
        topics: list[Topic] = []
        for kind, name, priority in items:
            if kind == "*":
                self._hints.drop_all()
                self._signals.publish_all()
            elif kind == WAIT:
                self._awaited[bytes.fromhex(name)] = SYSTEM.elapsed() + WAIT_EXPIRY
            elif kind == "job":
                topics.append((kind, bytes.fromhex(name)))
            else:
                topics.append((kind, name))
                if kind == "queue":
                    self._hints.job_pending(name, START if priority == RETURNED else (priority, LAST_ID))
        self._signals.publish(topics)

    # Waiting for jobs to finish.

    def _on_listen(self, topics: Sequence[Topic]) -> None:
        self._listener.start()
        keys = [name for kind, name in topics if kind == "job" and isinstance(name, bytes)]
        if keys:
            self._throttle.announce([(WAIT, key.hex(), 0) for key in keys])
            loop = asyncio.get_running_loop()
            for delay in WAIT_CHECKS:
                loop.call_later(delay, self._signals.publish, list(map(job_topic, keys)))
            if self._wait_timer is None:
                self._wait_timer = loop.call_later(WAIT_EXPIRY / 2, self._renew_waits)

    def _renew_waits(self) -> None:
        """Announce the waits of this process again, and drop the expired waits of others."""
        self._wait_timer = None
        now = SYSTEM.elapsed()
        self._awaited = {key: until for key, until in self._awaited.items() if until > now}
        keys = [name for kind, name in self._signals.topics if kind == "job" and isinstance(name, bytes)]
        if keys:
            self._throttle.announce([(WAIT, key.hex(), 0) for key in keys])
        if keys or self._awaited:
            self._wait_timer = asyncio.get_running_loop().call_later(WAIT_EXPIRY / 2, self._renew_waits)


def _job_items(jobs: Sequence[Insertion]) -> list[Item]:
    """Return the items that announce new jobs: their queues, each with its lowest priority."""
    queues: dict[str, int] = {}
    for job in jobs:
        queues[job.queue] = min(job.priority, queues.get(job.queue, job.priority))
    items: list[Item] = [("queue", queue, priority) for queue, priority in queues.items()]
    return [*items, topic_item(DUE)] if any(_has_due_time(job) for job in jobs) else items


def _has_due_time(job: Insertion) -> bool:
    """Whether the job may be due or expire at a later time."""
    times = (job.run_at, job.expires_at, job.expires_in)
    return bool(job.delay) or any(time is not None for time in times)
