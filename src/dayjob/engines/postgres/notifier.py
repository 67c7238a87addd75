"""Carries signals between processes: changes made here are sent, changes made elsewhere are published here.

The end of a job is sent only if another process waits for it. A process that starts to wait announces the
job, and the other processes keep the announcement for a limited time. Its own checks soon after cover the
time until the announcement has arrived.

Notifications are throttled, because each takes a lock that all commits of the server share. The first
notification of a topic is sent with the commit that causes it. Those that follow within a window are held
and sent at its end, all topics together. The window is twice as long as a commit that notifies takes, so that
such commits are under way for half of the time at most. The waits for jobs share one window.

Each notification wakes each listening session of the database. With many of them, all topics share a longer
window, so that the notifications of one process take a bounded share of the server's time. The enqueues of
callers' transactions then share notifications, too: each is sent when its transaction has ended. Waits are
announced only after a second, and read their jobs meanwhile.

They are received on one connection. The listener starts with the first wait. When its connection breaks,
waiting callers are woken at short intervals until it listens again, and once more then, for changes made in
between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from typing import Any

import msgspec

from dayjob.engines.base import Insertion
from dayjob.engines.postgres.database import Connection, Database, connect
from dayjob.engines.postgres.rows import split_topics
from dayjob.engines.postgres.scan_hints import LAST_ID, ScanHints
from dayjob.engines.postgres.settings import LISTENER, PostgresSettings
from dayjob.errors import DayjobError
from dayjob.runtime import ids
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import DUE, Signals, Topic, job_topic, queue_topic

_log = logging.getLogger("dayjob.engines.postgres")

WAIT_EXPIRY = 60.0
"""Seconds for which an announced wait of another process is kept. It is announced again before."""

WAIT_CHECKS = (0.03, 0.2, 1.0)
"""Seconds after which a new wait checks its job again."""

CROWDED_WAIT_CHECKS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0)
"""The same if there are many listeners. The wait is announced with the last check."""

SHORTEST_WINDOW, LONGEST_WINDOW = 0.002, 0.005
"""Seconds for which notifications of a topic are held after one was sent, however long its commit took. Many
listeners make it longer."""

COST, SHARE = 20e-6, 0.1
"""Seconds for which a notification occupies the server for each listener, and the most of its time for all
notifications of one process."""

QUIET = 1.0
"""A queue that was not announced for this many seconds is announced at once, however many listen."""

COUNT_EVERY = 20
COUNT_INTERVAL = 30.0
"""The listeners are counted after so many notifications, but not more often than that many seconds."""

_LAST_WEIGHT = 0.1
_LONGEST_COMMIT_CHECK = 1.0
_MAX_TOPICS = 1000

CHECK = 45.0
"""Seconds between two wake-ups of all waits, for missed notifications. Every second one checks the
connection, too."""

_LOOKS_PER_CHECK = 2
_CHECK_TIMEOUT = 5.0

_LONGEST_PAUSE = 5.0

_MAX_BYTES = 7_500
"""The longest message; the server takes just under 8,000 bytes."""

Item = tuple[str, str, int]
"""The kind and the name of a topic, and for a queue the lowest priority of its new jobs."""

WAIT = "wait"
"""The kind of an item that announces: the sender waits for the end of this job."""

_JOB_KINDS = ("job", WAIT)

EVERYTHING: Item = ("*", "", 0)
RETURNED = -1
"""In place of a priority: jobs returned to the queue, anywhere in its order."""

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(tuple[str, list[Item]]).decode


def encode_message(sender: str, items: list[Item]) -> str:
    """Return the text of a message. One that would be too long is replaced by one for all topics."""
    text = _encode((sender, items))
    return (text if len(text) <= _MAX_BYTES else _encode((sender, [EVERYTHING]))).decode()


def encode_messages(sender: str, items: list[Item]) -> list[str]:
    """Return the texts of as few messages as these items fit into."""
    if len(items) == 1 or len(_encode((sender, items))) <= _MAX_BYTES:
        return [encode_message(sender, items)]
    half = len(items) // 2
    return [*encode_messages(sender, items[:half]), *encode_messages(sender, items[half:])]


def decode_message(message: str) -> tuple[str, list[Item]]:
    """Return the sender and the items. One that can't be decoded is treated as a change of all topics."""
    try:
        sender, items = _decode(message)
        for kind, name, _ in items:
            if kind in _JOB_KINDS:
                bytes.fromhex(name)
    except (msgspec.MsgspecError, ValueError):
        return "", [EVERYTHING]
    return sender, items


def topic_item(topic: Topic, priority: int = RETURNED) -> Item:
    kind, name = topic
    return (kind, name.hex() if isinstance(name, bytes) else name, priority)


class Notifier:
    """The notifications of one engine, sent and received. Used on one event loop."""

    def __init__(
        self, settings: PostgresSettings, signals: Signals, database: Database, hints: ScanHints
    ) -> None:
        self.channel = settings.channel
        self.signals = signals
        self._database = database
        self._hints = hints
        self._throttle = Throttle(self._send, self._count_later)
        self._listener = Listener(settings, signals, database.listening, self._receive)
        self._sending: set[asyncio.Task[None]] = set()
        self._awaited: dict[bytes, float] = {}
        self._wait_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._uncommitted: dict[str, Collection[Topic]] = {}
        """The topics of callers' transactions that may be open, by transaction id."""
        self._commit_timer: asyncio.TimerHandle | None = None
        self._commit_pause = 0.0
        signals.on_listen = self._on_listen

    async def close(self) -> None:
        self.signals.on_listen = None
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        for topics in self._uncommitted.values():
            self.announce([*topics])
        if held := self._throttle.close():
            self._send(held)
        if self._sending:
            await asyncio.wait(self._sending)
        await self._listener.stop()
        if self._wait_timer is not None:
            self._wait_timer.cancel()

    # Sending.

    def with_commit(self, jobs: Sequence[Insertion]) -> AbstractContextManager[str | None]:
        """Yield the message that a commit of new jobs is to send; None if it is sent later, or none is."""
        return self._throttle.with_commit(_job_items(jobs))

    def message(self, topics: Sequence[Topic]) -> str:
        """Return a message that every process receives, this one included."""
        return encode_message("", [topic_item(topic) for topic in topics])

    def message_in_transaction(self, topics: Sequence[Topic]) -> str | None:
        """Return the message that a caller's transaction is to send. None: ``after_commit`` must follow."""
        items = [topic_item(topic) for topic in topics]
        return encode_message("", items) if self._throttle.may_send(items) else None

    def after_commit(self, transaction: str, topics: Sequence[Topic]) -> None:
        """Publish the topics when the caller's transaction has committed. Callable from any thread."""
        self._loop.call_soon_threadsafe(self._await_commit, transaction, topics)

    def _await_commit(self, transaction: str, topics: Sequence[Topic]) -> None:
        self._uncommitted[transaction] = {*self._uncommitted.get(transaction, ()), *topics}
        self._commit_pause = self._throttle.window
        self._check_commits_later()

    def _check_commits_later(self) -> None:
        if self._uncommitted and self._commit_timer is None:
            self._commit_timer = self._loop.call_later(
                self._commit_pause, lambda: self._start(self._check_commits())
            )

    async def _check_commits(self) -> None:
        try:
            ended = await self._database.fetch("ended_transactions", list(self._uncommitted))
        except DayjobError as error:
            _log.debug("the ends of callers' transactions were not read: %s", error)
            ended = []
        for transaction, committed in ended:
            topics = self._uncommitted.pop(transaction, ())
            if committed:
                self.publish([*topics])
        self._commit_timer = None
        self._commit_pause = min(2 * self._commit_pause, _LONGEST_COMMIT_CHECK)
        self._check_commits_later()

    def jobs_inserted(self, jobs: Sequence[Insertion]) -> None:
        """Publish new jobs here. Other processes are notified by the commit."""
        self.track(jobs)
        self.signals.publish(job_topics(jobs))

    def track(self, jobs: Sequence[Insertion]) -> None:
        """Let the claims of this process find new jobs whose ids are old."""
        if self._hints:
            for job in jobs:
                self._hints.job_pending(job.queue, (job.priority, job.key))

    def jobs_returned(self, queues: Collection[str]) -> None:
        """Announce that jobs returned to the queues, anywhere in their order."""
        if queues:
            self.publish([queue_topic(queue) for queue in queues])

    def publish(self, topics: Sequence[Topic]) -> None:
        """Publish the topics here, and notify other processes."""
        self.signals.publish(topics)
        self.announce(topics)

    def publish_reply(self, reply: Sequence[str]) -> list[str]:
        """Publish the topics in the reply of a statement. Return the rest of it."""
        rest, topics = split_topics(reply)
        if topics:
            self.publish([*topics])
        return rest

    def announce(self, topics: Sequence[Topic]) -> None:
        """Notify other processes."""
        self._throttle.announce([topic_item(topic) for topic in topics])

    def jobs_finished(self, keys: Sequence[bytes]) -> None:
        """Wake the waits for these jobs, here and in other processes."""
        if self.signals.has_listeners("job"):
            self.signals.publish(map(job_topic, keys))
        if self._awaited:
            awaited = [key for key in keys if key in self._awaited]
            if awaited:
                for key in awaited:
                    del self._awaited[key]
                self._throttle.announce([topic_item(job_topic(key)) for key in awaited])

    def _send(self, messages: list[str]) -> None:
        self._start(self._run_notify(messages))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _count_later(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._start(self._count_listeners()))

    async def _count_listeners(self) -> None:
        with suppress(DayjobError):  # The next count may succeed.
            [(self._throttle.listeners,)] = await self._database.fetch("listeners")

    async def _run_notify(self, messages: list[str]) -> None:
        sql = self._database.statements["notify"]
        try:
            await self._database.pool.run_retrying(
                lambda connection: connection.fetch(sql, self.channel, messages)
            )
        except DayjobError as error:
            _log.debug("a notification was not sent; other processes find the change by polling: %s", error)

    # Receiving.

    def _receive(self, connection: Connection, pid: int, channel: str, message: object) -> None:
        sender, items = decode_message(str(message))
        if sender == self._throttle.sender:
            return
        topics: list[Topic] = []
        for kind, name, priority in items:
            if kind == "*":
                self.signals.publish_all()
            elif kind == WAIT:
                self._awaited[bytes.fromhex(name)] = SYSTEM.elapsed() + WAIT_EXPIRY
                self._start_wait_timer()
            elif kind == "job":
                topics.append((kind, bytes.fromhex(name)))
            else:
                topics.append((kind, name))
                if kind == "queue" and priority != RETURNED:
                    self._hints.job_pending(name, (priority, LAST_ID))
        self.signals.publish_received(topics)

    # Waiting for jobs to finish.

    def _on_listen(self, topics: Sequence[Topic]) -> None:
        self._listener.start()
        keys = [name for kind, name in topics if kind == "job" and isinstance(name, bytes)]
        if keys:
            loop = asyncio.get_running_loop()
            crowded = self._throttle.crowded
            for delay in CROWDED_WAIT_CHECKS if crowded else WAIT_CHECKS:
                loop.call_later(delay, self.signals.publish, list(map(job_topic, keys)))
            if crowded:
                loop.call_later(CROWDED_WAIT_CHECKS[-1], self._announce_waits, keys)
            else:
                self._announce_waits(keys)
            self._start_wait_timer()

    def _announce_waits(self, keys: Sequence[bytes]) -> None:
        """Announce to other processes that this one waits for the jobs. Leave out waits that have ended."""
        waits = [(WAIT, key.hex(), 0) for key in keys if self.signals.has_listener(job_topic(key))]
        if waits:
            self._throttle.announce(waits)

    def _start_wait_timer(self) -> None:
        if self._wait_timer is None:
            self._wait_timer = asyncio.get_running_loop().call_later(WAIT_EXPIRY / 2, self._renew_waits)

    def _renew_waits(self) -> None:
        """Announce the waits of this process again, and drop the expired waits of others."""
        self._wait_timer = None
        now = SYSTEM.elapsed()
        self._awaited = {key: until for key, until in self._awaited.items() if until > now}
        keys = [name for kind, name in self.signals.topics if kind == "job" and isinstance(name, bytes)]
        self._announce_waits(keys)
        if keys or self._awaited:
            self._start_wait_timer()


def _job_items(jobs: Sequence[Insertion]) -> list[Item]:
    """Return the items that announce new jobs: their queues, each with its lowest priority."""
    queues: dict[str, int] = {}
    for job in jobs:
        queues[job.queue] = min(job.priority, queues.get(job.queue, job.priority))
    items: list[Item] = [("queue", queue, priority) for queue, priority in queues.items()]
    return [*items, topic_item(DUE)] if any(map(has_due_time, jobs)) else items


def job_topics(jobs: Sequence[Insertion]) -> set[Topic]:
    topics: set[Topic] = {queue_topic(queue) for queue in {job.queue for job in jobs}}
    if any(map(has_due_time, jobs)):
        topics.add(DUE)
    return topics


def has_due_time(job: Insertion) -> bool:
    """Whether the job may be due or expire at a later time."""
    return bool(job.delay) or not (job.run_at is job.expires_at is job.expires_in is None)


class Throttle:
    """Decides which topics are sent now and which at the end of the window.

    ``send`` sends messages outside of any commit. ``sender`` names this process in its messages.
    ``on_many`` is called after many notifications, to update ``listeners``.
    """

    def __init__(self, send: Callable[[list[str]], None], on_many: Callable[[], None] = lambda: None) -> None:
        self.sender = ids.new_key().hex()
        self.listeners = 0
        self._send = send
        self._on_many = on_many
        self._commit_seconds = 0.0
        """The moving average of the duration of commits that notify."""
        self._since_count = 0
        self._counted_at = float("-inf")
        self._sent_at: dict[tuple[str, str], float] = {}
        self._held: dict[tuple[str, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def with_commit(self, items: Iterable[Item]) -> Iterator[str | None]:
        """Yield the message that the commit inside the block is to send, or None.

        Throttled topics are held from the end of the block. A notification before the commit would wake
        listeners that cannot see the rows yet.
        """
        sent, held = self._split(items)
        began = SYSTEM.elapsed()
        try:
            yield encode_message(self.sender, sent) if sent else None
        finally:
            if sent:
                seconds = min(SYSTEM.elapsed() - began, LONGEST_WINDOW)
                self._commit_seconds += (seconds - self._commit_seconds) * _LAST_WEIGHT
            if held:
                self._hold(held)

    @property
    def window(self) -> float:
        """Seconds for which the topics after the first are held."""
        window = max(SHORTEST_WINDOW, min(2 * self._commit_seconds, LONGEST_WINDOW))
        return max(window, self.listeners * COST / SHARE)

    @property
    def crowded(self) -> bool:
        """Whether there are so many listeners that all topics share a window."""
        return self.listeners * COST / SHARE > LONGEST_WINDOW

    def may_send(self, items: Sequence[Item]) -> bool:
        """Return whether a transaction with these items may send them. If so, their windows start."""
        if not self.crowded:
            self._count(1)
            return True
        return not self._split(items)[1]

    def announce(self, items: Iterable[Item]) -> None:
        """Notify of changes that are committed already."""
        sent, held = self._split(items)
        if sent:
            self._send(encode_messages(self.sender, sent))
        if held:
            self._hold(held)

    def _split(self, items: Iterable[Item]) -> tuple[list[Item], list[Item]]:
        """Return the items to send now, which start their windows, and those to hold."""
        now, length, shared = SYSTEM.elapsed(), self.window, self.crowded
        sent, held = [], []
        started: set[tuple[str, str]] = set()
        for item in items:
            own = _window(item)
            window = _SHARED if shared else own
            if (
                window in started
                or now - self._sent_at.get(window, -length) >= length
                or (shared and own[0] == "queue" and now - self._sent_at.get(own, -QUIET) >= QUIET)
            ):
                sent.append(item)
                started |= {window, own}
            else:
                held.append(item)
        self._sent_at.update(dict.fromkeys(started, now))
        self._count(bool(started))
        if len(self._sent_at) > _MAX_TOPICS:
            self._sent_at.clear()
        return sent, held

    def _hold(self, items: Sequence[Item]) -> None:
        for kind, name, priority in items:
            topic = (kind, name)
            self._held[topic] = min(priority, self._held.get(topic, priority))
        if self._timer is None:
            window = _SHARED if self.crowded else _window(items[0])
            left = self._sent_at.get(window, 0.0) + self.window - SYSTEM.elapsed()
            self._timer = asyncio.get_running_loop().call_later(max(left, 0.0), self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._sent_at.update(dict.fromkeys([_SHARED, *map(_window, self._held)], SYSTEM.elapsed()))
        self._send(self._take_held())

    def _count(self, notifications: int) -> None:
        """Count the notifications. A process that sends few does not query the number of listeners."""
        self._since_count += notifications
        if self._since_count >= COUNT_EVERY and SYSTEM.elapsed() - self._counted_at >= COUNT_INTERVAL:
            self._since_count, self._counted_at = 0, SYSTEM.elapsed()
            self._on_many()

    def _take_held(self) -> list[str]:
        held, self._held = self._held, {}
        return encode_messages(self.sender, [(*topic, priority) for topic, priority in held.items()])

    def close(self) -> list[str]:
        """Stop the timer. Return the messages that are still to be sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._take_held() if self._held else []


_SHARED = ("", "")
"""The window of all topics while there are many listeners."""


def _window(item: Sequence[Any]) -> tuple[str, str]:
    """Return the name of the window of an item. Each topic has its own, but all waits share one.

    Otherwise many waits at once would send a notification each.
    """
    return (item[0], "" if item[0] == WAIT else item[1])


class Listener:
    """Listens on the event loop on which it was started. ``on_message`` is called for each message.

    ``listening`` is cleared from the start until it listens or polls. Reads wait for it, as a read before
    that might miss a change right after it.
    """

    def __init__(
        self,
        settings: PostgresSettings,
        signals: Signals,
        listening: asyncio.Event,
        on_message: Callable[[Connection, int, str, object], None],
    ) -> None:
        self._settings = settings
        self._signals = signals
        self._listening = listening
        self._on_message = on_message
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._listening.clear()
            loop = self._poll if self._settings.pgbouncer else self._listen
            self._task = asyncio.get_running_loop().create_task(loop(), name="dayjob listener")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        self._listening.set()

    async def _poll(self) -> None:
        self._listening.set()
        while True:
            await SYSTEM.wait(asyncio.Event(), self._settings.poll)
            self._signals.publish_all()

    async def _listen(self) -> None:
        poll = self._settings.poll
        longest = min(poll, _LONGEST_PAUSE)
        backoff = Backoff(min(poll / 4, longest), longest, jitter=True)
        logged = False
        while True:
            try:
                await self._listen_once()
                backoff.reset()
                logged = False
            except Exception as error:
                if not logged:
                    logged = True
                    _log.warning(
                        "%s: polling until notifications arrive again: %r", self._settings.url, error
                    )
            self._listening.set()
            self._signals.publish_all()
            await backoff.wait(SYSTEM)
            self._signals.publish_all()

    async def _listen_once(self) -> None:
        """Listen until the connection breaks."""
        connection = await connect(self._settings, self._settings.timeout, name=LISTENER)
        broken = asyncio.Event()
        connection.add_termination_listener(lambda *_: broken.set())
        try:
            async with asyncio.timeout(self._settings.timeout):  # Reads wait for this.
                await connection.add_listener(self._settings.channel, self._on_message)
            if self._listening.is_set():  # Callers that read in the meantime got no notification.
                self._signals.publish_all()
            self._listening.set()
            _log.debug("%s: listening for notifications", self._settings.url)
            for look in count(1):
                if await SYSTEM.wait(broken, CHECK):
                    break
                if look % _LOOKS_PER_CHECK == 0:
                    await connection.fetchval("SELECT 1", timeout=_CHECK_TIMEOUT)
                self._signals.look_again()
        finally:
            with suppress(Exception):
                connection.terminate()
