"""Mutations of the verbs that memory, SQLite and SlateDB share."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LOCAL = ("memory", "sqlite", "slatedb")
_INDEXED = ("memory", "sqlite")
"""SlateDB has the ends of retentions in an index of finished jobs, which a requeued job has left."""
_ACTIVE = ("memory", "slatedb")
"""The engines that have their active jobs in memory."""

_RECORD = "engines/record.py"
_VERBS = "engines/verbs.py"
_JOBS = "engines/active_jobs.py"
_RULES = "model/lifecycle.py"
_MEMORY = "engines/memory/store.py"

MUTATIONS = (
    Mutation(
        "fence: the claim is not compared", _LOCAL, _RECORD,
        "state == JobState.RUNNING and claim == claimed", "state == JobState.RUNNING",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "fence: the state is not compared", _LOCAL, _RECORD,
        "state == JobState.RUNNING and claim == claimed", "claim == claimed",
        "conformance/test_stale_claims.py conformance/test_cancel.py",
    ),
    Mutation(
        "a plain ack without the fence", ("memory",), _MEMORY,
        "if record is None or not records.current(record.state, record.claim, op.claim):",
        "if record is None:",
        "conformance/test_stale_claims.py conformance/test_settle.py",
    ),
    Mutation(
        "a plain ack keeps the room of its limits", ("memory",), _MEMORY,
        "self.limiter(now).give_back(record.limits)", "pass",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a plain ack keeps its dedup key", ("memory",), _MEMORY,
        "            record.held_key = None\n", "",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "renew without the fence", _LOCAL, _VERBS,
        "if record is None or not records.is_current(record, renewal.claim):", "if record is None:",
        "conformance/test_stale_claims.py conformance/test_leases.py",
    ),
    Mutation(
        "progress without the fence", _LOCAL, _VERBS,
        "if record is not None and records.is_current(record, report.claim):", "if record is not None:",
        "conformance/test_progress.py",
    ),
    Mutation(
        "a renewal keeps the old lease", _LOCAL, _VERBS,
        "record.lease_us = now + renewal.lease", "record.lease_us = record.lease_us or now",
        "conformance/test_leases.py",
    ),
    Mutation(
        "a renewal hides a cancel request", _LOCAL, _VERBS,
        "Renewed(record.lease_us, record.cancel_requested)", "Renewed(record.lease_us)",
        "conformance/test_leases.py",
    ),
    Mutation(
        "reap counts the last attempt of a job that was not suspect", _LOCAL, _RULES,
        "_T.LEASE_EXPIRED, _W.REPRIEVED, _S.PENDING, _A.UNCOUNT)",
        "_T.LEASE_EXPIRED, _W.REPRIEVED, _S.PENDING)",
        "conformance/test_suspects.py",
    ),
    Mutation(
        "reap does not count attempts", _LOCAL, _RULES,
        "_T.LEASE_EXPIRED, _W.ALWAYS, _S.PENDING)", "_T.LEASE_EXPIRED, _W.ALWAYS, _S.PENDING, _A.UNCOUNT)",
        "conformance/test_leases.py conformance/test_suspects.py",
    ),
    Mutation(
        "a job without attempts left runs again after its lease", _LOCAL, _RULES,
        "    Rule(_S.RUNNING, _T.LEASE_EXPIRED, _W.EXHAUSTED, _S.DEAD),\n", "",
        "conformance/test_leases.py conformance/test_suspects.py",
    ),
    Mutation(
        "the last nack is retried", _LOCAL, _RULES,
        "    Rule(_S.RUNNING, _T.NACK, _W.EXHAUSTED, _S.DEAD),\n", "",
        "conformance/test_settle.py::test_the_last_nack_is_dead",
    ),
    Mutation(
        "a released run counts", _LOCAL, _RULES,
        "_T.RELEASE, _W.ALWAYS, _S.PENDING, _A.UNCOUNT)", "_T.RELEASE, _W.ALWAYS, _S.PENDING)",
        "conformance/test_settle.py::test_a_released_job_is_pending_and_its_run_does_not_count",
    ),
    Mutation(
        "a cancelled job is retried after a failure", _LOCAL, _RULES,
        "    Rule(_S.RUNNING, _T.NACK, _W.CANCEL_REQUESTED, _S.CANCELLED),\n", "",
        "conformance/test_settle.py::test_a_nack_or_snooze_while_a_cancel_is_requested_is_cancelled",
    ),
    Mutation(
        "reap ends leases that a holder may still renew", _LOCAL, _VERBS,
        "now if expired_by is None else min(expired_by, now)", "now",
        "conformance/test_ended_jobs.py",
    ),
    Mutation(
        "deaths are not announced", _LOCAL, _VERBS,
        "    return list(map(_ended, changed, before, tasks))\n",
        "    ended = list(map(_ended, changed, before, tasks))\n"
        "    return [job for job in ended if job.state is not JobState.DEAD]\n",
        "conformance/test_ended_jobs.py",
    ),
    Mutation(
        "the end of a job keeps its dedup key", _LOCAL, _RECORD,
        "record.lease_us = record.held_key = None", "record.lease_us = None",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "follow-ups are not stored with the ack", _LOCAL, _VERBS,
        "        if op.insert:\n            skipped.update(",
        "        if not ops:\n            skipped.update(",
        "conformance/test_settle.py::test_follow_ups_and_kv_commit_with_the_ack",
    ),
    Mutation(
        "kv writes are not stored with the ack", _LOCAL, _VERBS,
        "        if op.kv:\n            store.kv_write(op.kv.items())\n", "",
        "conformance/test_settle.py::test_follow_ups_and_kv_commit_with_the_ack",
    ),
    Mutation(
        "documents are written without a comparison", _LOCAL, _VERBS,
        "if any(store.document(write.kind, write.name) != write.expected for write in writes):",
        "if not all(store.document(write.kind, write.name) or True for write in writes):",
        "conformance/test_documents.py",
    ),
    Mutation(
        "documents are compared one by one", _LOCAL, _VERBS,
        "if any(store.document(write.kind, write.name) != write.expected for write in writes):",
        "if all(store.document(write.kind, write.name) != write.expected for write in writes):",
        "conformance/test_documents.py",
    ),
    Mutation(
        "a schedule fires without its job", _LOCAL, _VERBS,
        "    skipped.update(_insert_some(store, now, jobs))\n", "",
        "conformance/test_documents.py conformance/test_schedules.py",
    ),
    Mutation(
        "a written document wakes no broker", _LOCAL, _VERBS,
        "        if announce:\n            store.topics.add(documents_topic(write.kind))\n", "",
        "conformance/test_documents.py",
    ),
    Mutation(
        "a cancel request is not stored", _LOCAL, _RECORD,
        "        record.cancel_requested = True\n", "",
        "conformance/test_cancel.py",
    ),
    Mutation(
        "a cancel request wakes no worker", _ACTIVE, _VERBS,
        "if CancelOutcome.REQUESTED in outcomes:", "if not outcomes:",
        "conformance/test_cancel.py",
    ),
    Mutation(
        "finished jobs are kept for ever", _LOCAL, _RECORD,
        "record.remove_us = None if kept is None else now + kept", "record.remove_us = None",
        "conformance/test_retention.py",
    ),
    Mutation(
        "a retention of zero keeps the job", _LOCAL, _RECORD,
        "record.removed = kept == 0", "record.removed = False",
        "conformance/test_retention.py",
    ),
    Mutation(
        "sweep_done ignores the age", _LOCAL, _VERBS,
        "record.finished_us is not None and record.finished_us <= now - age",
        "record.finished_us is not None",
        "conformance/test_retention.py",
    ),
    Mutation(
        "purge removes jobs that are not dead", _LOCAL, _VERBS,
        "record is not None and record.state is JobState.DEAD]", "record is not None]",
        "conformance/test_selected_dead_jobs.py",
    ),
    Mutation(
        "a pending job wakes no claim", _LOCAL, _VERBS,
        "        if state is JobState.PENDING:\n            topics.add(queue_topic(queue))\n", "",
        "conformance/test_claim_wait.py",
    ),
    Mutation(
        "the end of a job wakes no caller of wait", _LOCAL, _VERBS,
        "            topics.add(job_topic(record.key))\n", "            pass\n",
        "conformance/test_wait.py",
    ),
    Mutation(
        "a paused queue is claimed", _LOCAL, _VERBS,
        "if store.is_paused(queue):", "if store.is_paused(queue) and not queue:",
        "conformance/test_pause.py",
    ),
    Mutation(
        "a reserved id is stored again", _LOCAL, _VERBS,
        "        if job.key in reserved:\n", "        if job.key in reserved and not job.key:\n",
        "conformance/test_reserved_ids.py",
    ),
    Mutation(
        "a requeued job keeps its retention", _INDEXED, _RECORD,
        "record.last_error = record.finished_us = record.remove_us = record.expires_us = None",
        "record.last_error = record.finished_us = record.expires_us = None",
        "conformance/test_dead_jobs.py",
    ),
    Mutation(
        "more than ten errors are kept", _LOCAL, _RECORD,
        "(*record.errors, failure)[-ERRORS_KEPT:]", "(*record.errors, failure)",
        "conformance/test_settle.py::test_the_last_ten_errors_are_kept",
    ),
    Mutation(
        "a removed job stays counted", _LOCAL, _VERBS,
        "        self.drop(record.queue, record.state)\n        self._store.remove(record)",
        "        self._store.remove(record)",
        "conformance/test_retention.py",
    ),
    Mutation(
        "a claim does not release the dedup key", _ACTIVE, _RECORD,
        '    if record.dedup_until == "claimed":\n        record.held_key = None\n', "",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "the epoch follows a clock that was set back", _LOCAL, _RECORD,
        "return now if now > epoch else epoch + 1", "return now",
        "conformance/test_claim.py::test_the_epoch_of_a_job_grows_though_the_clock_is_set_back",
    ),
    Mutation(
        "the holder of a dedup key is not found", _ACTIVE, _JOBS,
        "else self.held.get((job.dedup_scope, job.dedup_key))", "else None",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "a renewed lease ends at its old time", _ACTIVE, _JOBS,
        "return record is not None and record.lease_us == entry[0]",
        "return record is not None and record.lease_us is not None",
        "conformance/test_leases.py",
    ),
    Mutation(
        "a changed priority leaves the old place in the queue", _ACTIVE, _JOBS,
        "            and record.priority == entry[0]\n", "",
        "conformance/test_dead_jobs.py",
    ),
    Mutation(
        "an expired job is claimed", _ACTIVE, _JOBS,
        "and record.expired(now):", "and record.expired(now) and not entry:",
        "conformance/test_expiry.py",
    ),
    Mutation(
        "an ended reservation still counts", _ACTIVE, _JOBS,
        "{key for key in keys if self._reserved.get(key, 0) > now}",
        "{key for key in keys if key in self._reserved}",
        "conformance/test_reserved_ids.py",
    ),
)  # fmt: skip
