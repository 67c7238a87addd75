"""The PostgreSQL engine's face to the broker: each verb one statement, one round trip, one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from dayjob import ids
from dayjob.durations import SECOND
from dayjob.engines.base import (
    Capabilities,
    ClaimRequest,
    Insertion,
    Keep,
    Keeps,
    Listing,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    Verdict,
)
from dayjob.engines.postgres import inserts, listing, rows, settles
from dayjob.engines.postgres.claiming import Claiming
from dayjob.engines.postgres.courier import Courier, Work
from dayjob.engines.postgres.cursors import Cursors
from dayjob.engines.postgres.doubts import Doubt, Doubts
from dayjob.engines.postgres.exchange import Exchange
from dayjob.engines.postgres.migrate import prepare
from dayjob.engines.postgres.news import Item, of_topic
from dayjob.engines.postgres.place import Place
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.settles import Settled
from dayjob.engines.postgres.statements import Statements
from dayjob.engines.postgres.within import fetch_within
from dayjob.errors import Closed, ConfigError, EngineUnavailable
from dayjob.job import FINISHED, CancelOutcome, Enqueued, Job, JobState, QueueStats, id_key, id_text
from dayjob.lifecycle import EXPIRED, LEASE_EXPIRED, Event
from dayjob.signals import CANCEL, DUE, Signals, Topic, queue_topic

Answer = TypeVar("Answer")

FOLDED = 2000
"""Rows of counters that are let stand before they are folded into their sum."""

_FOLD = 20_000
_NOTED_FOR = 600 * SECOND
"""How long the answer of a batch is kept."""

_PRUNE = 20_000


class PostgresEngine:
    """Jobs in a schema of a PostgreSQL database; see ``engines.base.Engine`` for the verbs."""

    capabilities = Capabilities(
        persistent=True, multi_process=True, transactional_enqueue=True, knows_orphans=False
    )

    def __init__(self, place: Place) -> None:
        self.signals = Signals()
        self._place = place
        self._statements = Statements(place.schema)
        self._cursors = Cursors()
        self._doubts = Doubts()
        self._opened: tuple[Courier, Exchange] | None = None
        self._installation = ""
        self._written = 0
        self._folding: asyncio.Task[None] | None = None

    async def open(self) -> None:
        courier = Courier(self._place, self._statements)

        async def begin(connection: Connection) -> str:
            await prepare(connection, self._place)
            found: str = await connection.fetchval(self._statements["installation"])
            return found

        try:
            self._installation = await courier.carry(begin)
        except BaseException:
            await courier.close()
            raise
        courier.in_doubt = self.signals.publish_all
        exchange = Exchange(self._place, self.signals, courier, self._statements, self._cursors)
        self._claiming = Claiming(courier, self._statements, self._cursors)
        self._opened = (courier, exchange)

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            courier, exchange = opened
            if self._folding is not None:
                await asyncio.wait({self._folding})
            await exchange.close()
            await courier.close()

    @property
    def _courier(self) -> Courier:
        return self._open()[0]

    @property
    def _exchange(self) -> Exchange:
        return self._open()[1]

    def _open(self) -> tuple[Courier, Exchange]:
        if self._opened is None:
            raise Closed(f"{self._place.url}: the engine is not open")
        return self._opened

    async def _fetch(self, name: str, *parameters: Any) -> list[Any]:
        """The rows of a statement that may be repeated."""

        async def fetch(connection: Connection) -> list[Any]:
            found: list[Any] = await connection.fetch(self._statements[name], *parameters)
            return found

        return await self._courier.carry(fetch)

    async def _change(self, name: str, *parameters: Any) -> list[str]:
        """What a statement tells that must not be repeated."""
        token = ids.new_key()

        async def change(connection: Connection) -> list[str]:
            found: list[str] = await connection.fetchval(self._statements[name], token, *parameters)
            return found

        self._count_writes()
        return await self._courier.carry(change, token=token, recall=list)

    # In.

    async def insert(self, jobs: Sequence[Insertion], now: int | None = None) -> list[Enqueued]:
        exchange = self._exchange
        news = exchange.with_commit(_news_of(jobs))
        answers = await self._insert(jobs, now, news)
        self._announce(jobs)
        return answers

    async def _insert(self, jobs: Sequence[Insertion], now: int | None, news: str | None) -> list[Enqueued]:
        statements, channel, token = self._statements, self._exchange.channel, ids.new_key()
        self._count_writes()
        if inserts.is_plain(jobs):

            async def plain(connection: Connection) -> list[Enqueued]:
                return await inserts.insert_plain(
                    connection.fetch, statements, jobs, now, token, channel, news
                )

            return await self._courier.carry(
                plain, token=token, recall=lambda stored: inserts.answers(jobs, stored)
            )

        async def one(connection: Connection) -> list[Enqueued]:
            return await inserts.insert_one(connection.fetch, statements, jobs[0], now, token, channel, news)

        if len(jobs) == 1 and not jobs[0].kv:
            stored = [Enqueued(id_text(jobs[0].key), True)]
            return await self._courier.carry(one, token=token, recall=lambda _: stored, patient=False)

        async def any_jobs(connection: Connection) -> list[Enqueued]:
            async with connection.transaction():
                answers = await inserts.insert(connection.fetch, statements, jobs, now, channel, news)
                await connection.execute(statements["note"], token, inserts.noted(answers))
            return answers

        return await self._courier.carry(any_jobs, token=token, recall=inserts.recalled, patient=False)

    def _announce(self, jobs: Sequence[Insertion]) -> None:
        """Wake who waits in this process."""
        topics: set[Topic] = set()
        for job in jobs:
            if job.run_at is not None or job.delay:
                topics.add(DUE)
            if job.expires_at is not None or job.expires_in is not None:
                topics.add(DUE)
            topics.add(queue_topic(job.queue))
            self._cursors.arrived(job.queue, (job.priority, job.key))
        self.signals.publish(topics)

    async def insert_within(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        topics: set[Topic] = {queue_topic(job.queue) for job in jobs} | {DUE}
        news = self._exchange.message(list(topics))
        fetch = await fetch_within(connection)
        installation = await fetch(self._statements["installation"])
        if not installation or installation[0][0] != self._installation:
            raise ConfigError(
                f"connection={connection!r} leads to another database than {self._place.url}: "
                "pass a connection to the one that the queue is in"
            )
        return await inserts.insert(fetch, self._statements, jobs, now, self._exchange.channel, news)

    # Out.

    async def claim(self, requests: Sequence[ClaimRequest], now: int | None = None) -> list[list[Job]]:
        if lost := await self._claiming.lost():
            await self.settle([Verdict(key, epoch, Event.RELEASE, Keep()) for key, epoch in lost], now)
        claimed: list[list[Job]] = []
        for request in requests:
            try:
                claimed.append(await self._claiming.claim(request, now))
            except EngineUnavailable:
                if not any(claimed):
                    raise
                claimed.append([])  # What the others got must reach them.
        self._count_writes()
        return claimed

    async def insert_and_claim(
        self, jobs: Sequence[Insertion], requests: Sequence[ClaimRequest], now: int | None = None
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        """One after the other: two commits of one statement each are sooner done than one of both."""
        answers = await self._insert(jobs, now, None)
        for job in jobs:
            self._cursors.arrived(job.queue, (job.priority, job.key))
        try:
            claimed = await self.claim(requests, now)
        except EngineUnavailable:
            claimed = [[] for _ in requests]
        self._announce(jobs)
        return answers, claimed

    async def settle(self, verdicts: Sequence[Verdict], now: int | None = None) -> list[JobState | None]:
        settled: Settled = {}
        for doubt in self._doubts.about(verdicts):
            settled |= await self._settle(doubt)
            self._doubts.remove(doubt)
        left = [verdict for verdict in verdicts if (verdict.key, verdict.epoch) not in settled]
        if left:
            doubt = Doubt(ids.new_key(), settles.once(left), now)
            try:
                settled |= await self._settle(doubt)
            except EngineUnavailable:
                self._doubts.add(doubt)
                raise
        self._tell(verdicts, settled)
        return settles.states(verdicts, settled)

    async def _settle(self, batch: Doubt) -> Settled:
        """Apply a batch, or find out what its first try came to."""
        statements, courier, channel = self._statements, self._courier, self._exchange.channel
        verdicts, token, now = batch.verdicts, batch.token, batch.now
        self._count_writes()
        if all(verdict.plain for verdict in verdicts):
            keys = [verdict.key for verdict in verdicts]
            epochs = [verdict.epoch for verdict in verdicts]

            async def succeed(connection: Connection) -> list[str] | None:
                found: list[str] | None = await connection.fetchval(
                    statements["succeed"], token, keys, epochs
                )
                return found

            answer = await courier.carry(succeed, token=token, recall=lambda answer: answer)
            return settles.succeeded(verdicts, answer)

        async def settle(connection: Connection) -> list[str]:
            return await settles.settle(connection.fetch, statements, verdicts, now, token)

        follow_ups = [job for verdict in verdicts for job in verdict.insert]
        news = self._exchange.with_commit(_news_of(follow_ups)) if follow_ups else None

        async def settle_with_effects(connection: Connection) -> list[str]:
            async with connection.transaction():
                return await settles.settle_with_effects(
                    connection.fetch, statements, verdicts, now, token, channel, news
                )

        effects = bool(follow_ups) or any(verdict.kv for verdict in verdicts)
        work: Work[list[str]] = settle_with_effects if effects else settle
        return settles.told(await courier.carry(work, token=token, recall=list, patient=not effects))

    def _tell(self, verdicts: Sequence[Verdict], settled: Settled) -> None:
        exchange = self._exchange
        exchange.finished([key for (key, _), (state, _) in settled.items() if state in FINISHED])
        if any(state not in FINISHED for state, _ in settled.values()):
            queues = {queue for state, queue in settled.values() if state is JobState.PENDING}
            if queues:
                exchange.returned(queues)
            if any(state is JobState.SCHEDULED for state, _ in settled.values()):
                exchange.happened(DUE)
        for verdict in verdicts:
            if verdict.insert:
                self._announce(verdict.insert)

    async def renew(self, renewals: Sequence[Renewal], now: int | None = None) -> list[Renewed]:
        found = await self._fetch(
            "renew", now,
            [renewal.key for renewal in renewals],
            [renewal.epoch for renewal in renewals],
            [renewal.lease for renewal in renewals],
        )  # fmt: skip
        renewed = {(row[0], row[1]): Renewed(row[2], row[3]) for row in found}
        return [renewed.get((renewal.key, renewal.epoch), Renewed(None)) for renewal in renewals]

    async def report(self, reports: Sequence[Progress]) -> None:
        latest = {(report.key, report.epoch): report for report in reports}
        await self._fetch(
            "report",
            [key for key, _ in latest],
            [epoch for _, epoch in latest],
            [rows.json_text((report.fraction, report.message)) for report in latest.values()],
        )

    # From outside.

    async def cancel(
        self, keys: Sequence[bytes], keeps: Keeps, now: int | None = None
    ) -> list[CancelOutcome]:
        exchange = self._exchange
        answer = await self._change(
            "cancel", now, exchange.channel, exchange.message([CANCEL]), list(dict.fromkeys(keys)),
            *rows.keep_columns(keeps, JobState.CANCELLED),
        )  # fmt: skip
        before = {id_key(text[:36]): JobState(text[37:]) for text in answer}
        outcomes: list[CancelOutcome] = []
        ended: set[bytes] = set()
        for key in keys:
            state = before.get(key)
            if state is JobState.RUNNING:
                outcomes.append(CancelOutcome.REQUESTED)
            elif state is None or key in ended:
                outcomes.append(CancelOutcome.NOT_FOUND)
            else:
                outcomes.append(CancelOutcome.REMOVED)
                ended.add(key)
        if CancelOutcome.REQUESTED in outcomes:
            self.signals.publish([CANCEL])
        exchange.finished(list(ended))
        return outcomes

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        return [(row[0], row[1]) for row in await self._fetch("cancel_requests")]

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        async def look(connection: Connection) -> dict[bytes, Job]:
            return await listing.get(connection, self._statements, keys)

        found = await self._courier.carry(look)
        return [found.get(key) for key in keys]

    async def find(self, wanted: Listing) -> list[Job]:
        async def look(connection: Connection) -> list[Job]:
            return await listing.find(connection, self._statements, wanted)

        return await self._courier.carry(look)

    async def requeue(self, keys: Sequence[bytes], now: int | None = None) -> list[bool]:
        answer = await self._change("requeue", now, list(dict.fromkeys(keys)))
        return self._back(keys, answer)

    def _back(self, keys: Sequence[bytes], answer: Sequence[str]) -> list[bool]:
        """The answers of jobs that came back to their queues, from texts of "id queue"."""
        queues = {id_key(text[:36]): text[37:] for text in answer}
        if queues:
            self._exchange.returned(set(queues.values()))
        return [queues.pop(key, None) is not None for key in keys]

    async def requeue_dead(self, queue: str, limit: int, now: int | None = None) -> int:
        return sum(await self.requeue(await self._finished(JobState.DEAD, queue, None, limit), now))

    async def purge_dead(self, queue: str | None, limit: int) -> int:
        keys = await self._finished(JobState.DEAD, queue, None, limit)
        return int((await self._change("purge_dead", keys))[0])

    async def _finished(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int
    ) -> list[bytes]:
        async def look(connection: Connection) -> list[bytes]:
            return await listing.finished_keys(connection, self._statements, state, queue, after, limit)

        return await self._courier.carry(look)

    async def reschedule(self, changes: Sequence[Reschedule], now: int | None = None) -> list[bool]:
        answer = await self._change(
            "reschedule", now,
            [change.key for change in changes],
            [change.run_at for change in changes],
            [change.priority for change in changes],
        )  # fmt: skip
        if answer:
            self._exchange.happened(DUE)
        return self._back([change.key for change in changes], answer)

    # Queues and values.

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        found = await self._fetch("stats")
        if sum(row[7] for row in found) > FOLDED + len(found):
            self._fold()
        return {row[0]: QueueStats(*row[1:7]) for row in found if queues is None or row[0] in queues}

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = {row[0]: row[1] for row in await self._fetch("kv_get", list(keys))}
        return [found.get(key) for key in keys]

    async def kv_write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        last = dict(writes)
        put = {key: value for key, value in last.items() if value is not None}
        deleted = [key for key, value in last.items() if value is None]

        async def write(connection: Connection) -> None:
            async with connection.transaction():
                if deleted:
                    await connection.execute(self._statements["kv_delete"], deleted)
                if put:
                    await connection.execute(self._statements["kv_put"], list(put), list(put.values()))

        await self._courier.carry(write)

    async def pause(self, queue: str, paused: bool) -> None:
        if paused:
            await self._fetch("pause", queue)
        else:
            exchange = self._exchange
            await self._fetch("resume", queue, exchange.channel, exchange.message([queue_topic(queue)]))
            self._cursors.drop([queue])
            self.signals.publish([queue_topic(queue)])

    async def paused(self) -> set[str]:
        return {row[0] for row in await self._fetch("paused")}

    # Duties.

    async def promote(self, limit: int, keeps: Keeps, now: int | None = None) -> tuple[int, int]:
        expired = await self._fetch(
            "expire", now, limit, *rows.keep_columns(keeps, JobState.CANCELLED), EXPIRED
        )
        ended = expired[0][0] or []
        self._exchange.finished(ended)
        due: int
        due, queues = (await self._fetch("promote", now, limit))[0]
        if queues:
            self._exchange.returned(queues)
        return due, len(ended)

    async def next_due(self, now: int | None = None) -> int | None:
        found = (await self._fetch("next_due", now))[0][0]
        return None if found is None else max(found, 0)

    async def reap(self, limit: int, keeps: Keeps, now: int | None = None) -> int:
        ended = await self._fetch("reap", now, limit, *rows.keep_columns(keeps, JobState.DEAD), LEASE_EXPIRED)
        self._exchange.finished([row[0] for row in ended if row[1] == "dead"])
        queues = {row[2] for row in ended if row[1] == "pending"}
        if queues:
            self._exchange.returned(queues)
        return len(ended)

    async def sweep(self, limit: int, now: int | None = None) -> int:
        await self._tidy()
        removed: int = (await self._fetch("sweep", now, limit))[0][0]
        return removed

    async def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, now: int | None = None
    ) -> tuple[int, bytes | None]:
        keys = await self._finished(state, None, after, limit)
        removed = (await self._fetch("sweep_finished", now, keys, state.value, age))[0][0]
        return removed, keys[-1] if len(keys) == limit else None

    # Tidiness.

    async def _tidy(self) -> None:
        """Fold the counters, and forget the answers of batches that nobody asks for any more."""
        await self._fetch("fold", _FOLD)
        await self._fetch("prune", _NOTED_FOR, _PRUNE)

    def _count_writes(self) -> None:
        self._written += 1
        if self._written >= FOLDED:
            self._fold()

    def _fold(self) -> None:
        """Fold the counters in the background."""
        self._written = 0
        if self._folding is None:
            self._folding = asyncio.get_running_loop().create_task(self._fold_now())

    async def _fold_now(self) -> None:
        try:
            await self._fetch("fold", _FOLD)
        except EngineUnavailable:
            pass  # The next time will do.
        finally:
            self._folding = None


def _news_of(jobs: Sequence[Insertion]) -> list[Item]:
    """What others are told of new jobs: which queues have some, and of which priority at best."""
    queues: dict[str, int] = {}
    due = False
    for job in jobs:
        queues[job.queue] = min(job.priority, queues.get(job.queue, job.priority))
        due = (
            due
            or bool(job.delay)
            or any(time is not None for time in (job.run_at, job.expires_at, job.expires_in))
        )
    items: list[Item] = [("queue", queue, priority) for queue, priority in queues.items()]
    return [*items, of_topic(DUE)] if due else items
