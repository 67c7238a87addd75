"""Mutations of the SQLite engine."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_SQLITE = ("sqlite",)
_STORE = "engines/sqlite/store.py"
_THREADS = "engines/sqlite/threads.py"
_SQL = "engines/sqlite/sql/"

MUTATIONS = (
    Mutation(
        "a plain ack without the fence", _SQLITE, _STORE,
        "if row is None or not records.current(row[2], row[3], op.claim):", "if row is None:",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "a claim is acked twice in a batch", _SQLITE, _STORE,
        "row = found.pop(op.key, None)", "row = found.get(op.key)",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "the dedup index is not unique", _SQLITE, "engines/sqlite/migrations/0005.sql",
        "CREATE UNIQUE INDEX dayjob_holders", "CREATE INDEX dayjob_holders",
        "engines/sqlite/test_migrations.py",
    ),
    Mutation(
        "a claim keeps a dedup key that it should release", _SQLITE, _SQL + "claim.sql",
        "held_key = CASE dedup_until WHEN 'settled' THEN held_key END", "held_key = held_key",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "a claim counts no attempt", _SQLITE, _SQL + "claim.sql",
        "attempts = attempts + 1", "attempts = attempts",
        "conformance/test_claim.py::test_each_claim_counts_an_attempt_and_has_a_higher_epoch",
    ),
    Mutation(
        "a claim keeps the progress of the last run", _SQLITE, _SQL + "claim.sql",
        "progress = NULL", "progress = progress",
        "conformance/test_progress.py",
    ),
    Mutation(
        "the order ignores priorities", _SQLITE, _SQL + "candidates.sql",
        "ORDER BY priority, ", "ORDER BY priority * 0, ",
        "conformance/test_claim.py::test_lower_priority_numbers_run_first_then_lower_ids",
    ),
    Mutation(
        "an expired job is claimed", _SQLITE, _SQL + "candidates.sql",
        "expires_at > ? OR attempts > 0", "expires_at > ? OR attempts >= 0",
        "conformance/test_expiry.py",
    ),
    Mutation(
        "a lease is never over", _SQLITE, _SQL + "lapsed.sql",
        "lease_expires_at <= ?", "lease_expires_at <= ? - 1000000000000",
        "conformance/test_leases.py",
    ),
    Mutation(
        "a commit does not wait for the disk", _SQLITE, _THREADS,
        'synchronous = "NORMAL" if all(sync_later for _, _, sync_later in calls) else durable',
        'synchronous = "NORMAL"',
        "engines/sqlite/test_claims_on_disk.py",
    ),
    Mutation(
        "a claim is never synced", _SQLITE, _THREADS,
        "self._unsynced = synchronous != durable and connection.total_changes != before",
        "self._unsynced = not calls and bool(before)",
        "engines/sqlite/test_claims_on_disk.py",
    ),
    Mutation(
        "a verb that fails leaves its first changes", _SQLITE, _THREADS,
        '                self._connection.execute("ROLLBACK TO dayjob_call")\n', "",
        "engines/sqlite/test_failed_verbs.py",
    ),
    Mutation(
        "a transaction begins without the write lock", _SQLITE, _THREADS,
        '        connection.execute("BEGIN IMMEDIATE")', '        connection.execute("BEGIN")',
        "engines/sqlite/test_locked.py engines/sqlite/test_sharing.py",
    ),
    Mutation(
        "a change by another process is not noticed", _SQLITE, _THREADS,
        "            self._call_soon(self._signals.publish_all)\n", "",
        "conformance/test_multi_process.py engines/sqlite/test_wake_up.py",
    ),
    Mutation(
        "a replaced file is written to", _SQLITE, _THREADS,
        "if self._settings.file_id() != self._file:",
        "if self._settings.file_id() != self._file and not self._file:",
        "faults/sqlite/test_replaced_files.py",
    ),
    Mutation(
        "a live process counts as gone", _SQLITE, _STORE,
        "if not is_here or is_gone(pid, started)]", "if not is_here or pid]",
        "engines/sqlite/test_orphans.py",
    ),
    Mutation(
        "a dead process is not noticed", _SQLITE, _STORE,
        "if not is_here or is_gone(pid, started)]", "if not is_here]",
        "engines/sqlite/test_orphans.py conformance/test_multi_process.py",
    ),
    Mutation(
        "a batch with an existing id is stored in part", _SQLITE, _STORE,
        "        if not complete:\n            self._cursor.execute(\"ROLLBACK TO dayjob_insert\")\n", "",
        "conformance/test_batches.py::test_a_batch_with_the_id_of_an_existing_job_stores_the_others",
    ),
    Mutation(
        "a renewed lease is not written", _SQLITE, _STORE,
        "        self._leases.append((record.lease_us, record.key))", "        self._leases.clear()",
        "conformance/test_leases.py",
    ),
    Mutation(
        "a cancel request of any job is returned", _SQLITE, _SQL + "cancel_requests.sql",
        "WHERE state = 'running' AND cancel_requested = 1",
        "WHERE state = 'running' AND cancel_requested >= 0",
        "conformance/test_cancel.py",
    ),
)  # fmt: skip
