"""The PostgreSQL engine: each verb is one statement and one commit, unless its docstring differs."""

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
    SettleOp,
    Token,
)
from dayjob.engines.postgres import diagnosis, documents, listing, rows
from dayjob.engines.postgres.caller_transaction import caller_fetch
from dayjob.engines.postgres.claim import Claimer
from dayjob.engines.postgres.counters import Counters
from dayjob.engines.postgres.database import Database, later_commit, token_key
from dayjob.engines.postgres.insert import Fetch, Transaction, insert, insert_all
from dayjob.engines.postgres.migrate import prepare
from dayjob.engines.postgres.notifier import Notifier
from dayjob.engines.postgres.pool import Connection, Pool
from dayjob.engines.postgres.scan_hints import ScanHints
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.settle import settle, states
from dayjob.engines.postgres.statements import Statements
from dayjob.errors import Closed, ConfigError
from dayjob.model.job import FINISHED, CancelOutcome, Enqueued, Job, JobState, QueueStats, id_key
from dayjob.model.lifecycle import EXPIRED, LEASE_EXPIRED, WORKER_GONE
from dayjob.runtime.signals import CANCEL, DUE, Signals, Topic, documents_topic, queue_topic


class PostgresEngine:
    """Jobs in a schema of a PostgreSQL database; see ``engines.base.Engine`` for the verbs."""

    capabilities = Capabilities(
        persistent=True, multi_process=True, transactional_enqueue=True, knows_orphans=False
    )

    def __init__(self, settings: PostgresSettings) -> None:
        self.signals = Signals()
        self.timeout = settings.timeout
        self._settings = settings
        self._statements = Statements(settings.schema)
        self._hints = ScanHints()
        self._opened: Database | None = None
        self._installation = ""

    async def open(self) -> None:
        statements = self._statements
        pool = Pool(self._settings)

        async def begin(connection: Connection) -> str:
            await prepare(connection, self._settings)
            installation: str = await connection.fetchval(statements["installation"])
            return installation

        try:
            self._installation = await pool.run_retrying(begin)
        except BaseException:
            await pool.close()
            raise
        notifier = Notifier(self._settings, self.signals, pool, statements, self._hints)
        database = Database(pool, statements, notifier, Counters(pool, statements))
        self._claimer = Claimer(database, self._hints)
        self._opened = database

    async def close(self) -> None:
        database, self._opened = self._opened, None
        if database is not None:
            await database.close()

    @property
    def _database(self) -> Database:
        if self._opened is None:
            raise Closed(f"{self._settings.url}: the engine is not open")
        return self._opened

    @property
    def _notifier(self) -> Notifier:
        return self._database.notifier

    # Insert.

    async def insert(
        self, jobs: Sequence[Insertion], now: int | None = None, token: Token | None = None
    ) -> list[Enqueued]:
        enqueued = await insert(self._database, jobs, now, token)
        self._notifier.jobs_inserted(jobs)
        return enqueued

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        topics: set[Topic] = {queue_topic(job.queue) for job in jobs} | {DUE}
        message = self._notifier.message(list(topics))
        fetch = await caller_fetch(connection)
        if await self._find_installation(fetch) != self._installation:
            raise ConfigError(
                f"connection={connection!r} leads to another database than {self._settings.url}: "
                "pass a connection to the database of the queue"
            )
        transaction = Transaction(fetch, self._statements, now, self._notifier.channel, message)
        return await insert_all(transaction, jobs)

    async def _find_installation(self, fetch: Fetch) -> str | None:
        """Return the id of the installation behind a caller's connection, or None."""
        try:
            found = await fetch(self._statements["installation"])
        except Exception as error:
            if type(error).__name__ in ("UndefinedTable", "UndefinedTableError"):
                return None
            raise
        return found[0][0] if found else None

    # Claim and settle.

    async def claim(
        self, requests: Sequence[ClaimRequest], now: int | None = None, token: Token | None = None
    ) -> list[list[Job]]:
        """Claim for each request, in a commit each. A repetition looks for the jobs of all of them."""
        return await self._claim(requests, now, token, 0)

    async def _claim(
        self, requests: Sequence[ClaimRequest], now: int | None, token: Token | None, part: int
    ) -> list[list[Job]]:
        repeated = token is not None and token.repeated
        claimed: list[list[Job]] = []
        with later_commit():
            for number, request in enumerate(requests, part):
                key = token_key(token, number)
                claimed.append(await self._claimer.claim(request, now, key, repeated=repeated))
        self._database.counters.row_written()
        return claimed

    async def insert_and_claim(
        self,
        jobs: Sequence[Insertion],
        requests: Sequence[ClaimRequest],
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        """``insert``, then ``claim``: two commits of one statement each are faster than one of both."""
        enqueued = await insert(self._database, jobs, now, token)
        self._hints.drop([job.queue for job in jobs])
        notifier = self._notifier
        try:
            return enqueued, await self._claim(requests, now, token, 1)
        finally:
            notifier.jobs_inserted(jobs)

    async def settle(
        self, ops: Sequence[SettleOp], now: int | None = None, token: Token | None = None
    ) -> list[JobState | None]:
        settled = await settle(self._database, ops, now, token)
        notifier = self._notifier
        if settled is None:
            notifier.jobs_finished([op.key for op in ops])
            return [JobState.DONE] * len(ops)
        notifier.jobs_finished([key for (key, _), (state, _) in settled.items() if state in FINISHED])
        if any(state not in FINISHED for state, _ in settled.values()):
            notifier.jobs_returned({queue for state, queue in settled.values() if state is JobState.PENDING})
            if any(state is JobState.SCHEDULED for state, _ in settled.values()):
                notifier.publish([DUE])
        for op in ops:
            if op.insert:
                notifier.jobs_inserted(op.insert)
        return states(ops, settled)

    async def renew(
        self, renewals: Sequence[Renewal], now: int | None = None, token: Token | None = None
    ) -> list[Renewed]:
        found = await self._database.fetch(
            "renew", now,
            [renewal.key for renewal in renewals],
            [renewal.epoch for renewal in renewals],
            [renewal.lease for renewal in renewals],
        )  # fmt: skip
        renewed = {(row[0], row[1]): Renewed(row[2], row[3]) for row in found}
        return [renewed.get((renewal.key, renewal.epoch), Renewed(None)) for renewal in renewals]

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        latest = {(report.key, report.epoch): report for report in reports}
        await self._database.execute(
            "record_progress",
            token,
            [key for key, _ in latest],
            [epoch for _, epoch in latest],
            [rows.json_text((report.fraction, report.message)) for report in latest.values()],
        )

    # Operations on single jobs.

    async def cancel(
        self,
        keys: Sequence[bytes],
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> list[CancelOutcome]:
        notifier = self._notifier
        reply = await self._database.execute(
            "cancel", token, now, notifier.channel, notifier.message([CANCEL]), list(dict.fromkeys(keys)),
            *rows.retention_columns(retention, JobState.CANCELLED),
        )  # fmt: skip
        before = {id_key(text[:36]): JobState(text[37:]) for text in reply}
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
        notifier.jobs_finished(list(ended))
        return outcomes

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        return [(row[0], row[1]) for row in await self._database.fetch("cancel_requests")]

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        async def get(connection: Connection) -> dict[bytes, Job]:
            return await listing.get(connection, self._statements, keys)

        found = await self._database.read(get)
        return [found.get(key) for key in keys]

    async def find(self, query: JobQuery) -> list[Job]:
        async def find(connection: Connection) -> list[Job]:
            return await listing.find(connection, self._statements, query)

        return await self._database.read(find)

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        async def find(connection: Connection) -> list[Job]:
            return await listing.find_dead(connection, self._statements, queue, before, limit)

        return await self._database.read(find)

    async def requeue(
        self, keys: Sequence[bytes], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        return self._returned(keys, await self._requeue(keys, now, token))

    async def _requeue(self, keys: Sequence[bytes], now: int | None, token: Token | None) -> list[str]:
        return await self._database.execute("requeue", token, now, list(dict.fromkeys(keys)))

    def _returned(self, keys: Sequence[bytes], reply: Sequence[str]) -> list[bool]:
        """Return for each job whether it returned to its queue, from a reply of "id queue"."""
        queues = {id_key(text[:36]): text[37:] for text in reply}
        self._notifier.jobs_returned(set(queues.values()))
        return [queues.pop(key, None) is not None for key in keys]

    async def requeue_dead(
        self, queue: str, limit: int, now: int | None = None, token: Token | None = None
    ) -> int:
        keys = await self._finished_keys(JobState.DEAD, queue, None, limit)
        reply = await self._requeue(keys, now, token)
        self._returned([], reply)
        return len(reply)

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        keys = await self._finished_keys(JobState.DEAD, queue, None, limit)
        return await self.purge(keys, token)

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        return int((await self._database.execute("purge_dead", token, list(keys)))[0])

    async def _finished_keys(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int
    ) -> list[bytes]:
        async def find(connection: Connection) -> list[bytes]:
            return await listing.finished_keys(connection, self._statements, state, queue, after, limit)

        return await self._database.read(find)

    async def reschedule(
        self, changes: Sequence[Reschedule], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        reply = await self._database.execute(
            "reschedule", token, now,
            [change.key for change in changes],
            [change.run_at for change in changes],
            [change.priority for change in changes],
        )  # fmt: skip
        if reply:
            self._notifier.publish([DUE])
        return self._returned([change.key for change in changes], reply)

    # Queues and values.

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        found = await self._database.fetch("stats")
        self._database.counters.rows_read(sum(row[7] for row in found) - len(found))
        return {row[0]: QueueStats(*row[1:7]) for row in found if queues is None or row[0] in queues}

    async def position(self, key: bytes, limit: int) -> int:
        found: int = (await self._database.fetch("position", key, limit))[0][0]
        return found

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = {row[0]: row[1] for row in await self._database.fetch("kv_get", list(keys))}
        return [found.get(key) for key in keys]

    async def kv_write(
        self, writes: Sequence[tuple[bytes, bytes | None]], token: Token | None = None
    ) -> None:
        last = dict(writes)
        await self._database.execute("kv_write", token, list(last), list(last.values()))

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        if paused:
            await self._database.execute("pause", token, queue)
        else:
            message = self._notifier.message([queue_topic(queue)])
            await self._database.execute("resume", token, queue, self._notifier.channel, message)
            self._hints.drop([queue])
            self.signals.publish([queue_topic(queue)])

    async def paused(self) -> set[str]:
        return {row[0] for row in await self._database.fetch("paused")}

    # Duties.

    async def promote(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        """Expire jobs, then make due jobs pending: two commits."""
        database, notifier = self._database, self._notifier
        columns = rows.retention_columns(retention, JobState.CANCELLED)
        expired = await database.execute("expire", token, now, limit, *columns, EXPIRED)
        notifier.jobs_finished([id_key(id) for id in expired])
        with later_commit():
            due, *queues = await database.execute("promote", token, now, limit, part=1)
        notifier.jobs_returned(queues)
        return int(due), len(expired)

    async def next_due(self, now: int | None = None) -> int | None:
        found = (await self._database.fetch("next_due", now))[0][0]
        return None if found is None else max(found, 0)

    async def reap(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> int:
        return await self._end_claims(token, now, limit, retention, LEASE_EXPIRED, None)

    async def reclaim(
        self,
        workers: Sequence[str],
        limit: int,
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> int:
        return await self._end_claims(token, now, limit, retention, WORKER_GONE, list(workers))

    async def _end_claims(
        self,
        token: Token | None,
        now: int | None,
        limit: int,
        retention: RetentionByQueue,
        error: str,
        workers: list[str] | None,
    ) -> int:
        columns = rows.retention_columns(retention, JobState.DEAD)
        reply = await self._database.execute("end_claims", token, now, limit, *columns, error, workers)
        ended = [text.split(" ", 2) for text in reply]
        self._notifier.jobs_finished([id_key(id) for id, state, _ in ended if state == "dead"])
        self._notifier.jobs_returned({queue for _, state, queue in ended if state == "pending"})
        return len(ended)

    async def sweep(self, limit: int, now: int | None = None, token: Token | None = None) -> int:
        await self._database.counters.fold_and_prune()
        return int((await self._database.execute("sweep", token, now, limit))[0])

    async def sweep_finished(
        self,
        state: JobState,
        age: int,
        after: bytes | None,
        limit: int,
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[int, bytes | None]:
        keys = await self._finished_keys(state, None, after, limit)
        cursor = keys[-1].hex() if len(keys) == limit else ""
        reply = await self._database.execute("sweep_finished", token, now, keys, state.value, age, cursor)
        return int(reply[0]), bytes.fromhex(reply[1]) or None

    # Documents.

    async def documents(self, kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        return documents.decode_documents(await self._database.fetch("documents", now, kind))

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        now: int | None = None,
        token: Token | None = None,
    ) -> bool:
        written = await documents.compare_and_set(self._database, writes, jobs, announce, now, token)
        if written:
            self._notifier.jobs_inserted(jobs)
            if announce:
                self.signals.publish({documents_topic(write.kind) for write in writes})
        return written

    async def diagnose(self) -> list[Diagnostic]:
        async def diagnose(connection: Connection) -> list[Diagnostic]:
            return await diagnosis.diagnose(connection, self._settings)

        return await self._database.read(diagnose)
