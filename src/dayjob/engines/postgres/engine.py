"""The PostgreSQL engine: each verb is one statement and one commit, unless its docstring differs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import (
    LIMITS,
    Capabilities,
    ClaimRequest,
    Death,
    Diagnostic,
    Document,
    Insertion,
    JobQuery,
    KvWrite,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    Token,
    Transient,
)
from dayjob.engines.limits import limit_infos
from dayjob.engines.postgres import diagnosis, listing, rows
from dayjob.engines.postgres.caller_transaction import caller_fetch
from dayjob.engines.postgres.claim import Claimer
from dayjob.engines.postgres.database import Database, Pool, after_commit
from dayjob.engines.postgres.migrate import prepare
from dayjob.engines.postgres.notifier import Notifier, job_topics
from dayjob.engines.postgres.scan_hints import ScanHints
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import LAST_TIME, Statements
from dayjob.engines.postgres.writes import Transaction, Writes, insert_new
from dayjob.errors import Closed, ConfigError
from dayjob.model.job import (
    LEASE_EXPIRED,
    WORKER_GONE,
    CancelOutcome,
    EndedJob,
    Enqueued,
    Job,
    JobState,
    QueueStats,
    id_key,
)
from dayjob.model.lifecycle import CANCELLED, EXPIRED, REQUEUED
from dayjob.model.limits import LimitInfo
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import CANCEL, DUE, queue_topic

_log = logging.getLogger("dayjob.engines.postgres")

_FIRST_TIME = -LAST_TIME


class PostgresEngine(Writes):
    """Jobs in a schema of a PostgreSQL database; see ``engines.base.Engine`` for the verbs."""

    capabilities = Capabilities(
        persistent=True,
        multi_process=True,
        transactional_enqueue=True,
        stores_replies=True,
        concurrent_commits=True,
    )

    def __init__(self, settings: PostgresSettings, clock: Clock | None) -> None:
        super().__init__(settings.timeout)
        self._settings = settings
        self._clock = clock
        self._statements = Statements(settings.schema)
        self._hints = ScanHints()
        self._dead_after: dict[str | None, bytes] = {}
        """The last ids that a purge or a requeue of dead jobs has read, by queue, if there may be more."""
        self._swept_until = _FIRST_TIME
        """The time that the sweep has reached, if there may be more to remove."""
        self._opened: Database | None = None
        self._installation = ""

    async def open(self) -> None:
        statements = self._statements
        pool = Pool(self._settings)
        try:
            await prepare(pool, self._settings, lambda text: _log.info("%s: %s", self._settings.url, text))
            self._installation = await pool.run_retrying(
                lambda connection: connection.fetchval(statements["installation"])
            )
        except BaseException:
            await pool.close()
            raise
        self._opened = Database(pool, statements, self._clock)
        self._notifier = Notifier(self._settings, self.signals, self._opened, self._hints)
        self._claimer = Claimer(self._opened, self._hints, self._notifier, self.ended)

    async def close(self) -> None:
        database, self._opened = self._opened, None
        if database is not None:
            await self._claimer.close()
            await self._notifier.close()
            await database.close()

    @property
    def _database(self) -> Database:
        if self._opened is None:
            raise Closed(f"{self._settings.url}: the engine is not open")
        return self._opened

    def _now(self) -> int | None:
        return self._database.now()

    # Insert and claim.

    async def insert_tx(self, connection: Any, jobs: Sequence[Insertion]) -> list[Enqueued]:
        statements = self._database.statements
        fetch = await caller_fetch(connection)
        try:
            found = await fetch(statements["installation"])
        except Exception as error:
            if type(error).__name__ not in ("UndefinedTable", "UndefinedTableError"):
                raise
            found = []
        if not found or found[0][0] != self._installation:
            raise ConfigError(
                f"connection={connection!r} leads to another database than {self._settings.url}: "
                "pass a connection to the database of the queue"
            )
        topics = job_topics(jobs)
        message = self._notifier.message_in_transaction([*topics])
        transaction = Transaction(
            fetch, statements, self._now(), self._notifier.channel, message, of_caller=True
        )
        enqueued, others = await insert_new(transaction, jobs)
        woken = rows.split_topics(others)[1] - topics
        if woken and (more := self._notifier.message_in_transaction([*woken])) is not None:
            await transaction.run("notify", self._notifier.channel, [more])
            woken = set()
        if message is None:
            woken |= topics
        if woken:
            [(id,)] = await transaction.run("transaction_id")
            self._notifier.after_commit(id, [*woken])
        return enqueued

    async def claim(self, requests: Sequence[ClaimRequest], token: Token | None = None) -> list[list[Job]]:
        """Claim for each request, in a commit each. A repetition looks for the jobs of all of them."""
        return await self._claimer.claim(requests, token)

    async def insert_and_claim(
        self, jobs: Sequence[Insertion], requests: Sequence[ClaimRequest], token: Token | None = None
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        """``insert``, then ``claim``: two commits of one statement each are faster than one of both."""
        enqueued = await self._insert(jobs, token)
        self._notifier.track(jobs)
        try:
            return enqueued, await self._claimer.claim(requests, token, part=1)
        finally:
            self._notifier.jobs_inserted(jobs)

    def wake_others(self, queues: Sequence[str]) -> None:
        self._notifier.announce(list(map(queue_topic, queues)))

    async def renew(self, renewals: Sequence[Renewal], token: Token | None = None) -> list[Renewed]:
        ordered = rows.in_lock_order(renewals)
        found = await self._database.fetch(
            "renew", self._now(),
            [renewal.key for renewal in ordered],
            [renewal.claim for renewal in ordered],
            [renewal.lease for renewal in ordered],
        )  # fmt: skip
        renewed = {(row[0], row[1]): Renewed(row[2], row[3]) for row in found}
        return [renewed.get((renewal.key, renewal.claim), Renewed(None)) for renewal in renewals]

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        latest = {(report.key, report.claim): report for report in rows.in_lock_order(reports)}
        await self._database.execute(
            "record_progress",
            token,
            [key for key, _ in latest],
            [claim for _, claim in latest],
            [rows.json_text((report.fraction, report.message)) for report in latest.values()],
        )

    # Operations on single jobs.

    async def cancel(self, keys: Sequence[bytes], token: Token | None = None) -> list[CancelOutcome]:
        database, notifier = self._database, self._notifier
        reply = await database.execute(
            "cancel", token, self._now(), notifier.channel, notifier.message([CANCEL]),
            list(dict.fromkeys(keys)), *rows.retention_columns(self.retention, JobState.CANCELLED),
        )  # fmt: skip
        before = {job.key: job for job in rows.ended_jobs(notifier.publish_reply(reply), CANCELLED)}
        outcomes: list[CancelOutcome] = []
        ended: list[EndedJob] = []
        for key in keys:
            job = before.get(key)
            if job is None:
                outcomes.append(CancelOutcome.NOT_FOUND)
            elif job.old_state is JobState.RUNNING:
                outcomes.append(CancelOutcome.REQUESTED)
            else:
                outcomes.append(CancelOutcome.REMOVED)
                ended.append(before.pop(key))
        if CancelOutcome.REQUESTED in outcomes:
            self.signals.publish([CANCEL])
        notifier.jobs_finished([job.key for job in ended])
        self.ended.extend(ended)
        return outcomes

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        return [(row[0], row[1]) for row in await self._database.fetch("cancel_requests")]

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        found = await self._database.fetch("get", list(dict.fromkeys(keys)))
        jobs = {job.key: job for job in map(rows.full_job, found)}
        return [jobs.get(key) for key in keys]

    async def find(self, query: JobQuery) -> list[Job]:
        keys = await listing.find_keys(self._database, query)
        if keys is None:
            return list(map(rows.full_job, await listing.find_rows(self._database, query)))
        return [job for job in await self.get(keys) if job is not None]

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]:
        keys = await listing.dead_keys(self._database, queue, before, limit)
        return [job for job in await self.get(keys) if job is not None]

    async def requeue(self, keys: Sequence[bytes], token: Token | None = None) -> list[bool]:
        requeued = await self._requeue(list(dict.fromkeys(keys)), token)
        return [requeued.pop(key, None) is not None for key in keys]

    async def _requeue(self, keys: Sequence[bytes], token: Token | None) -> dict[bytes, EndedJob]:
        reply = await self._database.execute("requeue", token, self._now(), keys)
        ended = rows.ended_jobs(reply, REQUEUED)
        self._notifier.jobs_returned({job.queue for job in ended})
        self.ended.extend(ended)
        return {job.key: job for job in ended}

    async def requeue_dead(self, queue: str, limit: int, token: Token | None = None) -> int:
        return len(await self._requeue(await self._dead_keys(queue, limit), token))

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        return await self.purge(await self._dead_keys(queue, limit), token)

    async def _dead_keys(self, queue: str | None, limit: int) -> list[bytes]:
        """Return ids of dead jobs, first those after the last ones of the call before.

        Under an old snapshot the index keeps the entries of purged jobs. A call that started with the first
        id would read all of them again.
        """
        after = self._dead_after.pop(queue, None)
        keys = await listing.finished_keys(self._database, JobState.DEAD, queue, after, limit)
        if after is not None and len(keys) < limit:
            keys = await listing.finished_keys(self._database, JobState.DEAD, queue, None, limit)
        if len(keys) == limit:
            self._dead_after[queue] = keys[-1]
        return keys

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        return int((await self._database.execute("purge_dead", token, list(keys)))[0])

    async def reschedule(self, changes: Sequence[Reschedule], token: Token | None = None) -> list[bool]:
        reply = await self._database.execute(
            "reschedule", token, self._now(),
            [change.key for change in changes],
            [change.run_at for change in changes],
            [change.priority for change in changes],
        )  # fmt: skip
        if reply:
            self._notifier.publish([DUE])
        queues = {id_key(text[:36]): text[37:] for text in self._notifier.publish_reply(reply)}
        self._notifier.jobs_returned(set(queues.values()))
        return [queues.pop(change.key, None) is not None for change in changes]

    # Queues and values.

    async def stats(self) -> dict[str, QueueStats]:
        found = await self._database.fetch("stats")
        self._database.fold_if_many(sum(row[8] for row in found) - len(found))
        return {row[0]: QueueStats(*row[1:8]) for row in found}

    async def pending_queues(self) -> list[str]:
        return [row[0] for row in await self._database.fetch("pending_queues")]

    async def position(self, key: bytes, limit: int) -> int:
        found: int = (await self._database.fetch("position", key, limit))[0][0]
        return found

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = {row[0]: row[1] for row in await self._database.fetch("kv_get", list(keys))}
        return [found.get(key) for key in keys]

    async def kv_write(self, writes: Sequence[KvWrite], token: Token | None = None) -> None:
        last = dict(writes)
        await self._database.execute("kv_write", token, list(last), list(last.values()))

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        if paused:
            await self._database.execute("pause", token, queue)
        else:
            message = self._notifier.message([queue_topic(queue)])
            await self._database.execute("resume", token, queue, self._notifier.channel, message)
            self.signals.publish([queue_topic(queue)])

    async def paused(self) -> set[str]:
        return {row[0] for row in await self._database.fetch("paused")}

    # Duties.

    async def promote(self, limit: int, token: Token | None = None) -> tuple[int, list[EndedJob]]:
        """Expire jobs, then make due jobs pending: two commits."""
        database, notifier = self._database, self._notifier
        columns = rows.retention_columns(self.retention, JobState.CANCELLED)
        reply = await database.execute("expire", token, self._now(), limit, *columns, EXPIRED)
        expired = rows.ended_jobs(notifier.publish_reply(reply), EXPIRED)
        notifier.jobs_finished([job.key for job in expired])
        try:
            due, *topics = await database.execute("promote", token, self._now(), limit, part=1)
        except Transient as error:
            raise after_commit(error) from error.__cause__
        notifier.publish_reply(topics)
        return int(due), expired

    async def next_due(self) -> int | None:
        found = (await self._database.fetch("next_due", self._now()))[0][0]
        return None if found is None else max(found, 0)

    async def reap(
        self, limit: int, expired_by: int | None = None, token: Token | None = None
    ) -> list[EndedJob]:
        return await self._end_claims(token, limit, LEASE_EXPIRED, None, expired_by)

    async def reclaim(self, workers: Sequence[str], limit: int, token: Token | None = None) -> list[EndedJob]:
        return await self._end_claims(token, limit, WORKER_GONE, list(workers), None)

    async def _end_claims(
        self,
        token: Token | None,
        limit: int,
        error: str,
        workers: list[str] | None,
        expired_by: int | None,
    ) -> list[EndedJob]:
        columns = rows.retention_columns(self.retention, JobState.DEAD)
        given = (self._now(), limit, *columns, error, workers, expired_by)
        reply = await self._database.execute("end_claims", token, *given)
        ended = rows.ended_jobs(self._notifier.publish_reply(reply), error)
        self._notifier.jobs_finished([job.key for job in ended if job.state is JobState.DEAD])
        self._notifier.jobs_returned({job.queue for job in ended if job.state is JobState.PENDING})
        return ended

    async def sweep(
        self, limit: int, over_by: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        """Fold the counters, prune, and remove jobs: several commits."""
        await self._database.fold_and_prune()
        time = self._now() if over_by is None else over_by
        [[ids]] = await self._database.fetch("free_ids", time, limit)
        await self._database.fetch("remove_idle", time, limit)
        removed, last = await self._database.execute("sweep", token, time, limit, self._swept_until)
        self._swept_until = int(last) if int(removed) == limit else _FIRST_TIME
        return int(removed), ids

    async def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, token: Token | None = None
    ) -> tuple[int, bytes | None]:
        keys = await listing.finished_keys(self._database, state, None, after, limit)
        cursor = keys[-1].hex() if len(keys) == limit else ""
        reply = await self._database.execute(
            "sweep_finished", token, self._now(), keys, state.value, age, cursor
        )
        return int(reply[0]), bytes.fromhex(reply[1]) or None

    # Limits.

    async def set_limit(self, name: str, value: bytes | None, token: Token | None = None) -> int:
        woken, *topics = await self._database.execute("set_limit", token, self._now(), name, value)
        self._notifier.publish_reply(topics)
        return int(woken)

    async def limits(self) -> list[LimitInfo]:
        _, stored = await self.documents(LIMITS)
        use = {row[0]: (row[1], row[2]) for row in await self._database.fetch("limit_use")}
        return limit_infos({each.name: each.value for each in stored}, use)

    async def bucket_due(self, name: str) -> int | None:
        found = await self._database.fetch("bucket_due", name)
        return found[0][0] if found else None

    # Documents.

    async def documents(self, kind: str) -> tuple[int, list[Document]]:
        found = await self._database.fetch("documents", self._now(), kind)
        present = [Document(name, value, written) for _, name, value, written in found if name is not None]
        return found[0][0], present

    async def diagnose(self) -> list[Diagnostic]:
        return await self._database.read(lambda connection: diagnosis.diagnose(connection, self._settings))
