"""The PostgreSQL engine's face to the broker: each verb one statement, one round trip, one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import (
    Capabilities,
    ClaimRequest,
    Diagnostic,
    Document,
    DocumentWrite,
    Insertion,
    JobQuery,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    RetentionByQueue,
    RetentionTimes,
    SettleOp,
    Token,
)
from dayjob.engines.postgres import diagnosis, listing, noting, rows
from dayjob.engines.postgres.claiming import Claiming
from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.cursors import Cursors
from dayjob.engines.postgres.exchange import Exchange
from dayjob.engines.postgres.inserting import Fetch, Inserting, insert
from dayjob.engines.postgres.migrate import prepare
from dayjob.engines.postgres.noting import Noting
from dayjob.engines.postgres.place import Place
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.settling import Settling, states
from dayjob.engines.postgres.statements import Statements
from dayjob.engines.postgres.tidying import Tidying
from dayjob.engines.postgres.within import fetch_within
from dayjob.errors import Closed, ConfigError, EngineUnavailable
from dayjob.model.job import FINISHED, CancelOutcome, Enqueued, Job, JobState, QueueStats, id_key
from dayjob.model.lifecycle import EXPIRED, LEASE_EXPIRED, WORKER_GONE, Transition
from dayjob.runtime import ids
from dayjob.runtime.signals import CANCEL, DUE, Signals, Topic, documents_topic, queue_topic


class PostgresEngine:
    """Jobs in a schema of a PostgreSQL database; see ``engines.base.Engine`` for the verbs."""

    capabilities = Capabilities(
        persistent=True, multi_process=True, transactional_enqueue=True, knows_orphans=False
    )

    def __init__(self, place: Place) -> None:
        self.signals = Signals()
        self._place = place
        self.timeout = place.timeout
        self._statements = Statements(place.schema)
        self._cursors = Cursors()
        self._opened: tuple[Courier, Exchange] | None = None
        self._installation = ""

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
        self._tidying = Tidying(courier, self._statements)
        self._inserting = Inserting(courier, self._statements, exchange, self._tidying)
        self._claiming = Claiming(courier, self._statements, self._cursors)
        self._settling = Settling(courier, self._statements, exchange, self._tidying)
        self._noting = Noting(courier, self._statements, exchange, self._tidying)
        self._opened = (courier, exchange)

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            courier, exchange = opened
            await self._tidying.close()
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
        await self._exchange.ready()

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

        self._tidying.written()
        return await self._courier.carry(change, token=token, recall=list)

    # In.

    async def insert(
        self, jobs: Sequence[Insertion], now: int | None = None, token: Token | None = None
    ) -> list[Enqueued]:
        answers = await self._inserting.insert(jobs, now)
        self._exchange.arrived(jobs)
        return answers

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        topics: set[Topic] = {queue_topic(job.queue) for job in jobs} | {DUE}
        news = self._exchange.message(list(topics))
        fetch = await fetch_within(connection)
        if await self._installation_at(fetch) != self._installation:
            raise ConfigError(
                f"connection={connection!r} leads to another database than {self._place.url}: "
                "pass a connection to the one that the queue is in"
            )
        return await insert(fetch, self._statements, jobs, now, self._exchange.channel, news)

    async def _installation_at(self, fetch: Fetch) -> str | None:
        """Which installation a caller's connection leads to; None if there is none."""
        try:
            found = await fetch(self._statements["installation"])
        except Exception as error:
            if type(error).__name__ in ("UndefinedTable", "UndefinedTableError"):
                return None
            raise
        return found[0][0] if found else None

    # Out.

    async def claim(
        self, requests: Sequence[ClaimRequest], now: int | None = None, token: Token | None = None
    ) -> list[list[Job]]:
        await self._exchange.ready()
        if lost := await self._claiming.lost():
            await self.settle(
                [SettleOp(key, epoch, Transition.RELEASE, RetentionTimes()) for key, epoch in lost], now
            )
        claimed: list[list[Job]] = []
        for request in requests:
            try:
                claimed.append(await self._claiming.claim(request, now))
            except EngineUnavailable:
                if not any(claimed):
                    raise
                claimed.append([])  # What the others got must reach them.
        self._tidying.written()
        return claimed

    async def insert_and_claim(
        self,
        jobs: Sequence[Insertion],
        requests: Sequence[ClaimRequest],
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        """One after the other: two commits of one statement each are sooner done than one of both."""
        answers = await self._inserting.insert(jobs, now)
        self._cursors.drop([job.queue for job in jobs])
        try:
            claimed = await self.claim(requests, now)
        except EngineUnavailable:
            claimed = [[] for _ in requests]
        self._exchange.arrived(jobs)
        return answers, claimed

    async def settle(
        self, ops: Sequence[SettleOp], now: int | None = None, token: Token | None = None
    ) -> list[JobState | None]:
        settled = await self._settling.settle(ops, now)
        exchange = self._exchange
        if settled is None:
            exchange.finished([op.key for op in ops])
            return [JobState.DONE] * len(ops)
        exchange.finished([key for (key, _), (state, _) in settled.items() if state in FINISHED])
        if any(state not in FINISHED for state, _ in settled.values()):
            exchange.returned({queue for state, queue in settled.values() if state is JobState.PENDING})
            if any(state is JobState.SCHEDULED for state, _ in settled.values()):
                exchange.happened(DUE)
        for op in ops:
            if op.insert:
                exchange.arrived(op.insert)
        return states(ops, settled)

    async def renew(
        self, renewals: Sequence[Renewal], now: int | None = None, token: Token | None = None
    ) -> list[Renewed]:
        found = await self._fetch(
            "renew", now,
            [renewal.key for renewal in renewals],
            [renewal.epoch for renewal in renewals],
            [renewal.lease for renewal in renewals],
        )  # fmt: skip
        renewed = {(row[0], row[1]): Renewed(row[2], row[3]) for row in found}
        return [renewed.get((renewal.key, renewal.epoch), Renewed(None)) for renewal in renewals]

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        latest = {(report.key, report.epoch): report for report in reports}
        await self._fetch(
            "report",
            [key for key, _ in latest],
            [epoch for _, epoch in latest],
            [rows.json_text((report.fraction, report.message)) for report in latest.values()],
        )

    # From outside.

    async def cancel(
        self,
        keys: Sequence[bytes],
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> list[CancelOutcome]:
        exchange = self._exchange
        answer = await self._change(
            "cancel", now, exchange.channel, exchange.message([CANCEL]), list(dict.fromkeys(keys)),
            *rows.keep_columns(retention, JobState.CANCELLED),
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

        await self._exchange.ready()
        found = await self._courier.carry(look)
        return [found.get(key) for key in keys]

    async def find(self, wanted: JobQuery) -> list[Job]:
        async def look(connection: Connection) -> list[Job]:
            return await listing.find(connection, self._statements, wanted)

        return await self._courier.carry(look)

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        async def find(connection: Connection) -> list[Job]:
            return await listing.find_dead(connection, self._statements, queue, before, limit)

        return await self._courier.carry(find)

    async def requeue(
        self, keys: Sequence[bytes], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        answer = await self._change("requeue", now, list(dict.fromkeys(keys)))
        return self._back(keys, answer)

    def _back(self, keys: Sequence[bytes], answer: Sequence[str]) -> list[bool]:
        """The answers of jobs that came back to their queues, from texts of "id queue"."""
        queues = {id_key(text[:36]): text[37:] for text in answer}
        self._exchange.returned(set(queues.values()))
        return [queues.pop(key, None) is not None for key in keys]

    async def requeue_dead(
        self, queue: str, limit: int, now: int | None = None, token: Token | None = None
    ) -> int:
        return sum(await self.requeue(await self._finished(JobState.DEAD, queue, None, limit), now))

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        keys = await self._finished(JobState.DEAD, queue, None, limit)
        return await self.purge(keys)

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        return int((await self._change("purge_dead", list(keys)))[0])

    async def _finished(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int
    ) -> list[bytes]:
        async def look(connection: Connection) -> list[bytes]:
            return await listing.finished_keys(connection, self._statements, state, queue, after, limit)

        return await self._courier.carry(look)

    async def reschedule(
        self, changes: Sequence[Reschedule], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
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
        self._tidying.seen(sum(row[7] for row in found) - len(found))
        return {row[0]: QueueStats(*row[1:7]) for row in found if queues is None or row[0] in queues}

    async def position(self, key: bytes, limit: int) -> int:
        found: int = (await self._fetch("ahead", key, limit))[0][0]
        return found

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = {row[0]: row[1] for row in await self._fetch("kv_get", list(keys))}
        return [found.get(key) for key in keys]

    async def kv_write(
        self, writes: Sequence[tuple[bytes, bytes | None]], token: Token | None = None
    ) -> None:
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

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
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

    async def promote(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        expired = await self._fetch(
            "expire", now, limit, *rows.keep_columns(retention, JobState.CANCELLED), EXPIRED
        )
        ended = expired[0][0] or []
        self._exchange.finished(ended)
        due: int
        due, queues = (await self._fetch("promote", now, limit))[0]
        self._exchange.returned(queues or ())
        return due, len(ended)

    async def next_due(self, now: int | None = None) -> int | None:
        found = (await self._fetch("next_due", now))[0][0]
        return None if found is None else max(found, 0)

    async def reap(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> int:
        return self._ended(
            await self._fetch("reap", now, limit, *rows.keep_columns(retention, JobState.DEAD), LEASE_EXPIRED)
        )

    async def reclaim(
        self,
        workers: Sequence[str],
        limit: int,
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> int:
        keep_columns = rows.keep_columns(retention, JobState.DEAD)
        return self._ended(
            await self._fetch("reclaim", now, limit, *keep_columns, WORKER_GONE, list(workers))
        )

    def _ended(self, ended: Sequence[rows.Row]) -> int:
        """How many claims came to nothing, from rows of id, new state and queue."""
        self._exchange.finished([row[0] for row in ended if row[1] == "dead"])
        self._exchange.returned({row[2] for row in ended if row[1] == "pending"})
        return len(ended)

    async def sweep(self, limit: int, now: int | None = None, token: Token | None = None) -> int:
        await self._tidying.tidy()
        removed: int = (await self._fetch("sweep", now, limit))[0][0]
        return removed

    async def sweep_finished(
        self,
        state: JobState,
        age: int,
        after: bytes | None,
        limit: int,
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[int, bytes | None]:
        keys = await self._finished(state, None, after, limit)
        removed = (await self._fetch("sweep_finished", now, keys, state.value, age))[0][0]
        return removed, keys[-1] if len(keys) == limit else None

    # Notes.

    async def documents(self, kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        return noting.told(await self._fetch("notes", now, kind))

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        now: int | None = None,
        token: Token | None = None,
    ) -> bool:
        written = await self._noting.write(writes, jobs, announce, now)
        if written:
            self._exchange.arrived(jobs)
            if announce:
                self.signals.publish({documents_topic(write.kind) for write in writes})
        return written

    async def diagnose(self) -> list[Diagnostic]:
        async def look(connection: Connection) -> list[Diagnostic]:
            return await diagnosis.diagnose(connection, self._place)

        return await self._courier.carry(look)
