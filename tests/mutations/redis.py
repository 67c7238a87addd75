"""Mutations of the Redis engine."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_REDIS = ("redis",)
_LUA = "engines/redis/lua/"
_KEYS = _LUA + "shared/*_keys.lua"
_CHANGES = _LUA + "shared/*_changes.lua"
_RULES = _LUA + "shared/*_rules.lua"
_INSERT = _LUA + "shared/*_insert.lua"
_CLAIM = _LUA + "shared/*_claim.lua"
_HANDOFFS = "engines/redis/handoffs.py"
_WAITING = "engines/redis/waiting_claims.py"

MUTATIONS = (
    Mutation(
        "fence: the claim is not compared", _REDIS, _RULES,
        "r.state == RUNNING and r.claim == claim", "r.state == RUNNING",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "fence: the state is not compared", _REDIS, _RULES,
        "r.state == RUNNING and r.claim == claim", "r.claim == claim",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "a plain ack without the claim", _REDIS, _LUA + "settle.lua",
        " or sub(blob, CLAIM_AT, CLAIM_AT + 15) ~= claim", "",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "a plain ack without the state", _REDIS, _LUA + "settle.lua",
        " or state ~= RUNNING", "",
        "conformance/test_stale_claims.py",
    ),
    Mutation(
        "a repeated write is applied again", _REDIS, _KEYS,
        "return number == NUMBER and step >= STEP and", "return number ~= number and",
        "conformance/test_repeated_writes.py",
    ),
    Mutation(
        "a write that arrives late is applied", _REDIS, _KEYS,
        "if number > NUMBER then", "if number ~= number then",
        "engines/redis/test_lost_replies.py engines/redis/test_repeated_writes.py",
    ),
    Mutation(
        "a repeated plain insert is applied again", _REDIS, _LUA + "insert_plain.lua",
        "if not stored or struct.unpack('>I8', stored) < number then", "if not stored or number then",
        "conformance/test_repeated_writes.py::test_a_repeated_insert_of_a_job_that_has_left_stores_nothing",
    ),
    Mutation(
        "a repeated claim returns lost claims", _REDIS, _CLAIM,
        "if is_current(r, TOKEN) then", "if r then",
        "conformance/test_repeated_writes.py engines/redis/test_repeated_writes.py",
    ),
    Mutation(
        "the holder of a dedup key is not found", _REDIS, _INSERT,
        "local holder = holder_of(field)\n", "local holder = nil\n",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "a claim does not release the dedup key", _REDIS, _RULES,
        "  if not r.settled then\n    release_dedup(r)\n  end\n", "",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "the end of a job keeps its dedup key", _REDIS, _RULES,
        "  r.finished, r.lease = NOW_TIME, NONE\n  release_dedup(r)\n",
        "  r.finished, r.lease = NOW_TIME, NONE\n",
        "conformance/test_dedup.py",
    ),
    Mutation(
        "reap counts the last attempt of a job that was not suspect", _REDIS, _RULES,
        "last and r.attempts - 1 or r.attempts", "r.attempts",
        "conformance/test_suspects.py",
    ),
    Mutation(
        "a job without attempts left runs again after its lease", _REDIS, _RULES,
        "if last and (suspect or r.max_attempts == 1) then", "if last and not r then",
        "conformance/test_leases.py conformance/test_suspects.py",
    ),
    Mutation(
        "an unacknowledged hand-off counts as a run", _REDIS, _RULES,
        "if redis.call('ZSCORE', HANDOFFS, handoff_member(r)) then", "if not r then",
        "engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "reap ends leases that a holder may still renew", _REDIS, _LUA + "reap.lua",
        "math.min(take_number() or NOW, NOW)", "take_number() and NOW or NOW",
        "conformance/test_ended_jobs.py",
    ),
    Mutation(
        "reclaim ends the claims of live workers", _REDIS, _LUA + "reclaim.lua",
        "worker ~= '' and workers[worker] and load(id)", "worker ~= '' and load(id)",
        "conformance/test_reclaim.py",
    ),
    Mutation(
        "documents are written without a comparison", _REDIS, _LUA + "compare_and_set.lua",
        "if (member and sub(member, #prefix + 10)) ~= expected then", "if not prefix then",
        "conformance/test_documents.py",
    ),
    Mutation(
        "a stale ack stores its follow-ups", _REDIS, _LUA + "settle.lua",
        "    if given % 16 > 7 then\n      if state > 0 then\n",
        "    if given % 16 > 7 then\n      if state then\n",
        "conformance/test_stale_claims.py conformance/test_settle.py",
    ),
    Mutation(
        "a stale ack writes its kv", _REDIS, _LUA + "settle.lua",
        "      if state > 0 then\n        writes[key] = value\n",
        "      if state then\n        writes[key] = value\n",
        "conformance/test_stale_claims.py conformance/test_settle.py",
    ),
    Mutation(
        "a cancel request wakes no worker", _REDIS, _LUA + "cancel.lua",
        "    cancel_requested = true\n", "",
        "conformance/test_cancel.py",
    ),
    Mutation(
        "a cancel request is not stored", _REDIS, _LUA + "cancel.lua",
        "    r.cancel = true\n", "",
        "conformance/test_cancel.py",
    ),
    Mutation(
        "a renewed lease ends at its old time", _REDIS, _LUA + "renew.lua",
        "    indexes[LEASES][id] = NOW + lease\n", "",
        "conformance/test_leases.py",
    ),
    Mutation(
        "finished jobs are kept for ever", _REDIS, _RULES,
        "r.remove = kept and to_time(NOW + kept) or NONE", "r.remove = NONE",
        "conformance/test_retention.py",
    ),
    Mutation(
        "a sweep removes jobs before their retention is over", _REDIS, _LUA + "sweep.lua",
        "redis.call('ZRANGEBYSCORE', REMOVALS, '-inf', NOW, 'LIMIT', 0, limit)",
        "redis.call('ZRANGEBYSCORE', REMOVALS, '-inf', '+inf', 'LIMIT', 0, limit)",
        "conformance/test_retention.py",
    ),
    Mutation(
        "a reserved id is stored again", _REDIS, _INSERT,
        "return until_time and tonumber(until_time) > NOW",
        "return until_time and tonumber(until_time) > NOW * 2",
        "conformance/test_reserved_ids.py",
    ),
    Mutation(
        "an existing job is overwritten", _REDIS, _LUA + "insert_plain.lua",
        "redis.pcall('HSETNX', JOBS, id, record) == 1", "redis.call('HSET', JOBS, id, record)",
        "conformance/test_enqueue.py",
    ),
    Mutation(
        "a job passes the claims that wait", _REDIS, _LUA + "insert_plain.lua",
        "if #members == 0 or", "if #members >= 0 or",
        "engines/redis/test_handoffs.py",
    ),
    Mutation(
        "the epoch follows a clock that was set back", _REDIS, _RULES,
        "math.max(r.epoch + 1, NOW)", "NOW",
        "conformance/test_claim.py::test_the_epoch_of_a_job_grows_though_the_clock_is_set_back",
    ),
    Mutation(
        "a paused queue is claimed", _REDIS, _CLAIM,
        "if limit > 0 and redis.call('SISMEMBER', PAUSED, queue) == 0 then", "if limit > 0 then",
        "conformance/test_pause.py",
    ),
    Mutation(
        "an expired job is claimed", _REDIS, _CLAIM,
        "elseif is_expired(r) then", "elseif not r then",
        "conformance/test_expiry.py",
    ),
    Mutation(
        "two claims of a batch get the same job", _REDIS, _CLAIM,
        "    flush(true) -- so that the next request does not find the same jobs\n", "",
        "conformance/test_claim.py conformance/test_batches.py",
    ),
    Mutation(
        "a hand-off that is lost waits for its lease", _REDIS, _LUA + "insert_plain.lua",
        "  redis.call('ZADD', HANDOFFS, now + ACKNOWLEDGED_WITHIN, id .. waiting.name)\n", "",
        "engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "a hand-off that is not received is kept for ever", _REDIS, _LUA + "insert_plain.lua",
        "  redis.call('PEXPIRE', list, ACKNOWLEDGED_WITHIN / 1000)\n", "",
        "engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "a newer claim is revoked for an older hand-off", _REDIS, _LUA + "promote.lua",
        "if is_current(r, sub(name, 17)) then", "if r and r.state == RUNNING then",
        "engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "a hand-off that was revoked is delivered", _REDIS, _HANDOFFS,
        "if blob is not None and record.is_claimed_by(handoff.claim, blob):", "if blob is not None:",
        "engines/redis/test_hostile_messages.py engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "a late hand-off starts before the reply", _REDIS, _HANDOFFS,
        "return job if abs(age) < _PROMPT else None", "return job",
        "engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "a hand-off of an ended registration starts before the reply", _REDIS, _WAITING,
        " and self.member == registered.member", "",
        "engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "a hand-off starts during a claim that may have withdrawn it", _REDIS, _WAITING,
        "not (registered.claiming or registered.waiting.closed)", "not registered.waiting.closed",
        "engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "a job is delivered twice after lost replies", _REDIS, _WAITING,
        "        if self.key in registered.delivered:\n            return\n", "",
        "engines/redis/test_hostile_messages.py",
    ),
    Mutation(
        "a lost acknowledgment is not repeated", _REDIS, _HANDOFFS,
        "self._in_background(self._acknowledge_again(handoff))", "handoff.end()",
        "engines/redis/test_lost_handoffs.py",
    ),
    Mutation(
        "a message of the channel is taken for a hand-off", _REDIS, "engines/redis/subscriber.py",
        "            self._act(reply[1], self._publish, reply[1], reply[2])",
        "            self._act(reply[1], self._handoffs.receive, reply[2])",
        "engines/redis/test_hostile_messages.py",
    ),
    Mutation(
        "the end of a job wakes no caller of wait", _REDIS, _CHANGES,
        "  if #ended > 0 then\n", "  if #ended < 0 then\n",
        "conformance/test_wait.py",
    ),
    Mutation(
        "a pending job wakes no claim", _REDIS, _CHANGES,
        "    claimable[r.queue] = true\n  elseif state == SCHEDULED then", "  elseif state == SCHEDULED then",
        "conformance/test_claim_wait.py",
    ),
    Mutation(
        "a removed job stays counted", _REDIS, _CHANGES,
        "  if state ~= DONE then -- the counter of successes never goes down\n", "  if state < DONE then\n",
        "conformance/test_retention.py",
    ),
    Mutation(
        "a claim leaves a hand-off under way", _REDIS, _LUA + "claim.lua",
        " and withdraw_handoff(member) then", " and not member then",
        "engines/redis/test_closed_waiting_claims.py",
    ),
    Mutation(
        "a withdrawn hand-off is found by the next claim only", _REDIS, _LUA + "claim.lua",
        "  flush(true) -- so that the claims", "  -- so that the claims",
        "engines/redis/test_closed_waiting_claims.py",
    ),
    Mutation(
        "a claim does not wait for acknowledgments", _REDIS, "engines/redis/engine.py",
        "        await waiting.acknowledged(requests)\n        return claimed", "        return claimed",
        "engines/redis/test_closed_waiting_claims.py",
    ),
    Mutation(
        "a claim whose time is over is registered", _REDIS, "engines/redis/arguments.py",
        " and not waiting.is_last:", ":",
        "engines/redis/test_closed_waiting_claims.py",
    ),
    Mutation(
        "a claim whose time ended before its reply stays registered", _REDIS, "broker/session.py",
        "if jobs or waiting.is_last or (left <= 0 and request.waiting is None):", "if jobs or left <= 0:",
        "engines/redis/test_closed_waiting_claims.py",
    ),
    Mutation(
        "all records have one salt", _REDIS, "engines/redis/record.py",
        "_SALTS[crc32(key) % len(_SALTS)]", "_SALTS[crc32(b'') % len(_SALTS)]",
        "engines/redis/test_alike_jobs.py",
    ),
    Mutation(
        "the subscription starts without a time limit", _REDIS, "engines/redis/subscriber.py",
        "min(SILENCE, client.settings.timeout)", "SILENCE",
        "engines/redis/test_subscriber.py",
    ),
)  # fmt: skip
