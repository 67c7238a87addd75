"""Mutations of the PostgreSQL engine."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_POSTGRES = ("postgres",)
_WRITES = "engines/postgres/writes.py"
_CLAIM = "engines/postgres/claim.py"
_SQL = "engines/postgres/sql/"

MUTATIONS = (
    Mutation(
        "an ack without the fence", _POSTGRES, _SQL + "ack.sql",
        "$6::bigint = 0 AND jobs.id = ANY (ARRAY[op.id]) AND jobs.claim = op.claim",
        "$6::bigint = 0 AND jobs.id = ANY (ARRAY[op.id])",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "an ack that is kept without the fence", _POSTGRES, _SQL + "ack.sql",
        "$6 <> 0 AND jobs.id = ANY (ARRAY[op.id]) AND jobs.claim = op.claim",
        "$6 <> 0 AND jobs.id = ANY (ARRAY[op.id])",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "settle: the claim is not compared", _POSTGRES, _SQL + "settle.sql",
        "WHERE jobs.claim = op.claim AND jobs.state || '' = 'running'", "WHERE jobs.state || '' = 'running'",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "settle: the state is not compared", _POSTGRES, _SQL + "settle.sql",
        "WHERE jobs.claim = op.claim AND jobs.state || '' = 'running'", "WHERE jobs.claim = op.claim",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "renew without the fence", _POSTGRES, _SQL + "renew.sql",
        "jobs.claim = renewal.claim AND ", "",
        "conformance/test_stale_claims.py conformance/test_leases.py",
    ),
    Mutation(
        "progress without the fence", _POSTGRES, _SQL + "record_progress.sql",
        "jobs.claim = report.claim AND ", "",
        "conformance/test_progress.py",
    ),
    Mutation(
        "a renewal keeps the old lease", _POSTGRES, _SQL + "renew.sql",
        "SET lease_expires_at = clock.now + renewal.lease", "SET lease_expires_at = lease_expires_at",
        "conformance/test_leases.py",
    ),
    Mutation(
        "reap counts the last attempt of a job that was not suspect", _POSTGRES, _SQL + "end_claims.sql",
        "CASE WHEN last AND NOT dead THEN attempts - 1 ELSE attempts END AS attempts", "attempts",
        "conformance/test_suspects.py",
    ),
    Mutation(
        "a job without attempts left runs again after its lease", _POSTGRES, _SQL + "end_claims.sql",
        "attempts >= max_attempts AND (max_attempts = 1 OR", "false AND (max_attempts = 1 OR",
        "conformance/test_leases.py conformance/test_suspects.py",
    ),
    Mutation(
        "reap ends leases that a holder may still renew", _POSTGRES, _SQL + "end_claims.sql",
        "least($9::bigint, now)", "least($9::bigint + 1000000000000, now)",
        "conformance/test_ended_jobs.py",
    ),
    Mutation(
        "reclaim ends the claims of live workers", _POSTGRES, _SQL + "end_claims.sql",
        "($8::text[] IS NULL OR worker = ANY ($8::text[]))", "($8::text[] IS NULL OR worker IS NOT NULL)",
        "conformance/test_reclaim.py",
    ),
    Mutation(
        "a job that is dead by its lease keeps its dedup key", _POSTGRES, _SQL + "end_claims.sql",
        "held_key = CASE WHEN ended.state = 'dead' THEN NULL ELSE jobs.held_key END",
        "held_key = jobs.held_key",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "the dedup index is not unique", _POSTGRES, "engines/postgres/migrations/0007.sql",
        "CREATE UNIQUE INDEX CONCURRENTLY jobs_keys", "CREATE INDEX CONCURRENTLY jobs_keys",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "a claim keeps a dedup key that it should release", _POSTGRES, _SQL + "claim.sql",
        "held_key = CASE WHEN dedup_until = 'settled' THEN held_key END", "held_key = held_key",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "the end of a job keeps its dedup key", _POSTGRES, _SQL + "settle.sql",
        "held_key = CASE WHEN settled.finished THEN NULL ELSE jobs.held_key END", "held_key = jobs.held_key",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "the reply of an insert is not stored", _POSTGRES, _SQL + "insert.sql",
        "WHERE $1::uuid IS NOT NULL AND inserted > 0", "WHERE $1::uuid IS NOT NULL AND inserted < 0",
        "engines/postgres/test_repeated_writes.py",
    ),
    Mutation(
        "the reply of a plain insert is not stored", _POSTGRES, _SQL + "insert_plain.sql",
        "VALUES ($1::uuid)", "SELECT $1::uuid WHERE false",
        "engines/postgres/test_repeated_writes.py",
    ),
    Mutation(
        "an old id of a plain insert is not late", _POSTGRES, _SQL + "insert_plain.sql",
        "job.id < clock.late_before", "job.id < clock.late_before AND false",
        "engines/postgres/test_plain_inserts.py",
    ),
    Mutation(
        "the reply of an ack is not stored", _POSTGRES, _SQL + "ack.sql",
        "(:STORE)", "(SELECT 1)",
        "engines/postgres/test_repeated_writes.py",
    ),
    Mutation(
        "the reply of a settlement is not stored", _POSTGRES, _SQL + "settle.sql",
        "(:STORE WHERE $1::uuid IS NOT NULL)", "(:STORE WHERE $1::uuid IS NULL AND $1::uuid IS NOT NULL)",
        "conformance/test_repeated_writes.py",
    ),
    Mutation(
        "the reply of the reaper is not stored", _POSTGRES, _SQL + "end_claims.sql",
        "WHERE reply <> '{}'", "WHERE reply <> '{}' AND false",
        "conformance/test_repeated_writes.py",
    ),
    Mutation(
        "a repeated claim takes other jobs", _POSTGRES, _CLAIM,
        "if repeated and (found := await self._find(request, key)):",
        "if not key and (found := await self._find(request, key)):",
        "conformance/test_repeated_writes.py",
    ),
    Mutation(
        "a repeated claim does not wait for the first", _POSTGRES, _CLAIM,
        '            await connection.execute(self._database.statements["await_claim"], key)\n', "",
        "engines/postgres/test_repeated_writes.py",
    ),
    Mutation(
        "a claim does not lock its jobs", _POSTGRES, _SQL + "claim.sql",
        "        FOR UPDATE SKIP LOCKED\n", "",
        "conformance/test_claim.py engines/postgres/test_concurrent_claims.py",
    ),
    Mutation(
        "a claim counts no attempt", _POSTGRES, _SQL + "claim.sql",
        "attempts = attempts + 1", "attempts = attempts",
        "conformance/test_claim.py::test_each_claim_counts_an_attempt_and_has_a_higher_epoch",
    ),
    Mutation(
        "the epoch follows a clock that was set back", _POSTGRES, _SQL + "claim.sql",
        "greatest(epoch + 1, clock.now)", "clock.now",
        "conformance/test_claim.py::test_the_epoch_of_a_job_grows_though_the_clock_is_set_back",
    ),
    Mutation(
        "a paused queue is claimed", _POSTGRES, _SQL + "claim.sql",
        "WHERE pauses.queue = wanted.queue) IS NULL", "WHERE pauses.queue = wanted.queue || '-') IS NULL",
        "conformance/test_pause.py",
    ),
    Mutation(
        "an expired job is claimed", _POSTGRES, _SQL + "claim.sql",
        "jobs.expires_at IS NULL OR jobs.attempts > 0", "jobs.expires_at IS NULL OR jobs.attempts >= 0",
        "conformance/test_expiry.py",
    ),
    Mutation(
        "documents are written without a comparison", _POSTGRES, _SQL + "compare_and_set.sql",
        "    WHERE documents.value = given.expected\n", "    WHERE given.expected IS NOT NULL\n",
        "conformance/test_documents.py",
    ),
    Mutation(
        "documents are written though one is not as expected", _POSTGRES, _SQL + "compare_and_set.sql",
        "given.expected IS NOT NULL AND given.value IS NOT NULL AND result.written",
        "given.expected IS NOT NULL AND given.value IS NOT NULL",
        "conformance/test_documents.py",
    ),
    Mutation(
        "a refused write of documents is not rolled back", _POSTGRES, _WRITES,
        "                    if reply != _WRITTEN:\n                        raise _Unexpected\n",
        "                    if reply != _WRITTEN:\n                        return reply\n",
        "conformance/test_documents.py",
    ),
    Mutation(
        "finished jobs are kept for ever", _POSTGRES, _SQL + "settle.sql",
        "remove_at = CASE WHEN settled.retention > 0 THEN clock.now + settled.retention END",
        "remove_at = NULL",
        "conformance/test_retention.py",
    ),
    Mutation(
        "a sweep removes jobs before their retention is over", _POSTGRES, _SQL + "sweep.sql",
        "remove_at <= (SELECT dayjob.now_us($2))", "remove_at <= (SELECT dayjob.now_us($2)) + 1000000000000",
        "conformance/test_retention.py",
    ),
    Mutation(
        "a stale ack stores its follow-ups", _POSTGRES, _WRITES,
        "applied = [op for op in step if (op.key, op.claim) in settled]", "applied = list(step)",
        "conformance/test_stale_claims.py conformance/test_settle.py",
    ),
    Mutation(
        "follow-ups commit apart from the ack", _POSTGRES, _WRITES,
        "            first = 1\n            async with connection.transaction():\n",
        "            first = 1\n            if first:\n",
        "conformance/test_settle.py engines/postgres/test_dedup.py",
    ),
    Mutation(
        "a cancel request wakes no other process", _POSTGRES, _SQL + "cancel.sql",
        "CASE WHEN requests AND :NOTIFICATIONS_FIT", "CASE WHEN NOT requests AND :NOTIFICATIONS_FIT",
        "conformance/test_cancel.py",
    ),
    Mutation(
        "a cancel request is not stored", _POSTGRES, _SQL + "cancel.sql",
        "SET cancel_requested = true", "SET cancel_requested = cancel_requested",
        "conformance/test_cancel.py",
    ),
    Mutation(
        "a reserved id is stored again", _POSTGRES, _SQL + "insert.sql",
        "AND (NOT given.reserve_id OR given.id IN (",
        "AND (NOT given.reserve_id OR given.id IS NOT NULL OR given.id IN (",
        "conformance/test_reserved_ids.py",
    ),
    Mutation(
        "a retried job is not marked late", _POSTGRES, _SQL + "settle.sql",
        "late = CASE WHEN settled.state = 'pending' THEN pg_current_xact_id() ELSE jobs.late END",
        "late = jobs.late",
        "engines/postgres/test_scan_hints.py",
    ),
    Mutation(
        "a promoted job stays counted as scheduled", _POSTGRES, _SQL + "promote.sql",
        "SELECT queue, -count(*), count(*) FROM saved", "SELECT queue, 0, count(*) FROM saved",
        "conformance/test_clock.py",
    ),
    Mutation(
        "settlements lock their jobs in the order of the caller", _POSTGRES, _WRITES,
        "            sent = in_lock_order(sent)\n", "",
        "engines/postgres/test_locks.py::test_a_batch_of_acks_is_sent_in_the_order_of_the_locks",
    ),
    Mutation(
        "the listener starts without a time limit", _POSTGRES, "engines/postgres/notifier.py",
        "asyncio.timeout(self._settings.timeout):  # Reads", "asyncio.timeout(None):  # Reads",
        "faults/postgres/test_listening.py",
    ),
)  # fmt: skip
