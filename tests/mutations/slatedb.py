"""Mutations of the SlateDB engine."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_SLATEDB = ("slatedb",)
_STORE = "engines/slatedb/store.py"
_THREAD = "engines/slatedb/store_thread.py"
_CLAIMS = "engines/slatedb/open_claims.py"
_ARCHIVE = "engines/slatedb/archive.py"
_BATCH = "engines/slatedb/write_batch.py"

MUTATIONS = (
    Mutation(
        "a reply does not wait for durability", _SLATEDB, _THREAD,
        "        self._written.set()\n        await self._database.wait_durable(handle)",
        "        self._written.set()",
        "engines/slatedb/test_lost_replies.py faults/slatedb/test_failed_commits.py",
    ),
    Mutation(
        "a failed write is acknowledged", _SLATEDB, _THREAD,
        "durable = commit.durable.done() and self._check_written(commit.durable)",
        "durable = commit.durable.done()",
        "faults/slatedb/test_failed_commits.py",
    ),
    Mutation(
        "a failed write leaves the thread running", _SLATEDB, _THREAD,
        "            self._fail(error)\n        return error is None", "        return error is None",
        "faults/slatedb/test_failed_commits.py::test_a_write_that_can_not_be_confirmed_ends_the_thread",
    ),
    Mutation(
        "an answer from memory needs no commit", _SLATEDB, _BATCH,
        "        self.put(keys.LAYOUT_KEY, values.layout_value(keys.VERSION))",
        "        self.staged.update()",
        "faults/slatedb/test_failed_commits.py",
    ),
    Mutation(
        "the reply of an unconfirmed write is not kept", _SLATEDB, _THREAD,
        "        self._unconfirmed[call.token.client, call.token.slot] = UnconfirmedReply(",
        "        UnconfirmedReply(",
        "engines/slatedb/test_lost_replies.py",
    ),
    Mutation(
        "a stored reply answers another write of its slot", _SLATEDB, _THREAD,
        "return kept if kept is not None and kept.number == token.number else None", "return kept",
        "engines/slatedb/test_lost_replies.py",
    ),
    Mutation(
        "a claim whose reply was lost is kept", _SLATEDB, _THREAD,
        "        self._store.release_later([job for jobs in claimed for job in jobs])\n", "",
        "engines/slatedb/test_lost_replies.py",
    ),
    Mutation(
        "a fenced process opens the database again", _SLATEDB, _THREAD,
        "if self._known_epoch is not None and await settings.read_epoch() > self._known_epoch:",
        "if self._known_epoch is not None and await settings.read_epoch() < 0:",
        "engines/slatedb/test_ownership.py",
    ),
    Mutation(
        "a take-over is not noticed while nothing is written", _SLATEDB, _THREAD,
        "            if stopped is not None:\n                self._fail(stopped)\n\n    def _search_cause",
        "            if stopped is not None:\n                self._wake.set()\n\n    def _search_cause",
        "engines/slatedb/test_ownership.py",
    ),
    Mutation(
        "a claim is not written", _SLATEDB, _STORE,
        "            self.write_batch.put(keys.claim(number), values.encode(stored))\n"
        "            self._clean = False",
        "            self._clean = False",
        "conformance/test_reopen.py",
    ),
    Mutation(
        "an ended claim is not deleted", _SLATEDB, _STORE,
        "            if ended is not None:\n                self.write_batch.delete(keys.claim(ended))\n", "",
        "engines/slatedb/test_layout.py conformance/test_reopen.py",
    ),
    Mutation(
        "an id that returns runs under its earlier claim", _SLATEDB, _STORE,
        "            self._forget_claims(key)\n", "            pass\n",
        "engines/slatedb/test_opening.py",
    ),
    Mutation(
        "a finished job returns after a restart", _SLATEDB, _STORE,
        "        batch.delete(keys.job(key))\n", "",
        "conformance/test_reopen.py engines/slatedb/test_layout.py",
    ),
    Mutation(
        "a changed state is lost by a restart", _SLATEDB, _STORE,
        "        self.write_batch.put(keys.state(key), values.changed_value(record, session))\n", "",
        "conformance/test_reopen.py",
    ),
    Mutation(
        "a renewed lease is lost by a restart", _SLATEDB, _STORE,
        "        self.active.enter(record)\n        self._save_state(record)",
        "        self.active.enter(record)",
        "conformance/test_reopen.py::test_a_renewed_lease_is_stored",
    ),
    Mutation(
        "a reservation is lost by a restart", _SLATEDB, _STORE,
        "        self.write_batch.put(keys.reservation(until, key), ", "        hash((until, key)) or (",
        "conformance/test_reserved_ids.py",
    ),
    Mutation(
        "the end of a retention is not indexed", _SLATEDB, _ARCHIVE,
        "            put(keys.removal(record.remove_us, key), values.removal_value(record))\n", "",
        "conformance/test_retention.py",
    ),
    Mutation(
        "a dead job is not listed", _SLATEDB, _ARCHIVE,
        "                put(row, record.queue.encode())", "                assert row",
        "conformance/test_dead_jobs.py",
    ),
    Mutation(
        "the id of a finished job is used again", _SLATEDB, _STORE,
        "if other != key and self.archive.has(key, self._archived):",
        "if other != key and self.archive.has(key, self._archived) and not key:",
        "conformance/test_reserved_ids.py::test_a_kept_job_holds_its_id_after_the_reservation",
    ),
    Mutation(
        "counters are lost by a restart", _SLATEDB, _BATCH,
        "            staged[keys.queue(queue)] = values.queue_value(self.stats[queue], queue in self.paused)",
        "            assert queue in self.stats",
        "conformance/test_reopen.py",
    ),
    Mutation(
        "an orphan's claim is compared by its job only", _SLATEDB, _STORE,
        "if record is not None and records.is_current(record, claim):",
        "if record is not None and record.lease_us:",
        "engines/slatedb/test_ownership.py::test_a_new_claim_of_an_orphans_job_is_not_ended",
    ),
    Mutation(
        "the claims of a dead process wait for their leases", _SLATEDB, _STORE,
        "orphans, left = self.orphans[: limit - len(ended)], self.orphans[limit - len(ended) :]",
        "orphans, left = self.orphans[:0], self.orphans[limit - len(ended) :]",
        "engines/slatedb/test_ownership.py",
    ),
    Mutation(
        "topics are not published after a commit", _SLATEDB, _THREAD,
        "self._deliver(commit.outcomes, commit.topics)", "self._deliver(commit.outcomes, set())",
        "conformance/test_claim_wait.py",
    ),
    Mutation(
        "the topics of a late commit are not published", _SLATEDB, _THREAD,
        "        commit.durable.add_done_callback(lambda _: self.subscribers.publish(commit.topics))\n", "",
        "engines/slatedb/test_lost_replies.py faults/slatedb/test_outages.py",
    ),
    Mutation(
        "a claim with other running jobs is forgotten", _SLATEDB, _CLAIMS,
        "        if claim.running:\n", "        if len(claim.running) > 1:\n",
        "conformance/test_reopen.py engines/slatedb/test_opening.py",
    ),
    Mutation(
        "a long log stays long", _SLATEDB, _THREAD,
        "if await self.settings.log_objects() > _LOG_OBJECTS:", "if not await self.settings.log_objects():",
        "engines/slatedb/test_s3.py",
    ),
)  # fmt: skip
