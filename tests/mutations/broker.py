"""Mutations of the broker, the duties and the worker, which all engines share."""

from __future__ import annotations

from tests.mutations.mutation import BROKER, Mutation

_BROKER = (BROKER,)
_RETRIES = "broker/retrying_storage.py"
_SESSION = "broker/session.py"
_SCHEDULES = "broker/schedules.py"
_DUTIES = "duties/duties.py"
_WORKER = "worker/worker.py"
_HEARTBEAT = "worker/heartbeat.py"

MUTATIONS = (
    Mutation(
        "a repeated write gets a new token", _BROKER, _RETRIES,
        "call(token=write.token)", "call(token=replace(write.token, key=new_key()))",
        "broker/test_retrying_storage.py",
    ),
    Mutation(
        "a repeated write is not marked as repeated", _BROKER, _RETRIES,
        "write.token = replace(write.token, repeated=True)", "write.token = replace(write.token)",
        "broker/test_retrying_storage.py",
    ),
    Mutation(
        "a settlement of unknown outcome is forgotten", _BROKER, _RETRIES,
        "            self._unconfirmed[UnconfirmedBatch(token, ops)] = frozenset(map(_settlement, ops))\n",
        "",
        "broker/test_retrying_storage.py",
    ),
    Mutation(
        "the replies of a confirmed batch are forgotten", _BROKER, _RETRIES,
        "            self.keep_replies(batch.ops, states)\n", "            pass\n",
        "broker/test_retrying_storage.py",
    ),
    Mutation(
        "a lost reply wakes no listener", _BROKER, _RETRIES,
        "                    self.engine.signals.publish_all()\n                return reply",
        "                    assert reply is not self\n                return reply",
        "broker/test_retrying_storage.py",
    ),
    Mutation(
        "a contended repetition is final", _BROKER, _RETRIES,
        "                if write is None or not write.token.repeated:\n                    raise",
        "                if write is None or write is not None:\n                    raise",
        "broker/test_retrying_storage.py",
    ),
    Mutation(
        "the slot of an unconfirmed write is used again", _BROKER, _RETRIES,
        "                    free = None\n                raise",
        "                    pass\n                raise",
        "broker/test_retrying_storage.py",
    ),
    Mutation(
        "the jobs of a lost claim are not released", ("postgres", "redis"), _RETRIES,
        "            self.unconfirmed_claims.append((plain, token))\n            return True",
        "            return not plain",
        "faults/postgres/test_long_outages.py engines/redis/test_lost_replies.py",
    ),
    Mutation(
        "the job of a cancelled claim is kept", _BROKER, _SESSION,
        "            undelivered=self._give_back,\n", "",
        "broker/test_abandoned_claims.py",
    ),
    Mutation(
        "a due time fires with any id", _BROKER, _SCHEDULES,
        '        insertion.key = derived_key(due // 1000, f"{schedule.id}\\0{due}".encode())\n', "",
        "conformance/test_schedules.py",
    ),
    Mutation(
        "a change of a schedule ignores a refusal", _BROKER, _SCHEDULES,
        "            if await self._storage.compare_and_set([write], announce=True):\n"
        "                return after",
        "            await self._storage.compare_and_set([write], announce=True)\n            return after",
        "conformance/test_schedules.py",
    ),
    Mutation(
        "a lease ends at the first look", _BROKER, _DUTIES,
        "self._expired_by = self._seen", "self._expired_by = seen",
        "broker/test_duties.py",
    ),
    Mutation(
        "a step of the clock ends leases", _BROKER, _DUTIES,
        "grace = self._storage.steps.rest(self._longest_lease)", "grace = 0.0",
        "conformance/test_clock_steps.py broker/test_duties.py",
    ),
    Mutation(
        "a sweep after a step of the clock removes jobs", _BROKER, _DUTIES,
        "        if rest > 0:\n            return rest\n        await self.sweep(now)",
        "        await self.sweep(now)",
        "conformance/test_clock_steps.py",
    ),
    Mutation(
        "a dead worker is removed before its jobs are reclaimed", _BROKER, _DUTIES,
        "total = await self.reclaim_from([seen.member.id for seen in dead])", "total = 0",
        "conformance/test_worker_registry.py",
    ),
    Mutation(
        "followers run the duties", _BROKER, _DUTIES,
        "return await self._duty.run_once() if self._election.leads else FOLLOWER_INTERVAL",
        "return await self._duty.run_once()",
        "broker/test_fleet_duties.py",
    ),
    Mutation(
        "a cancel request fires no token", _BROKER, _DUTIES,
        "        self._claims.checked(requests)", "        self._claims.checked(())",
        "broker/test_cancel_tokens.py",
    ),
    Mutation(
        "a cancel request fires the token of another claim", _BROKER, "broker/held_claims.py",
        "held = self._held.get(request)",
        "held = next((each for (key, _), each in self._held.items() if key == request[0]), None)",
        "broker/test_cancel_tokens.py conformance/test_cancel.py",
    ),
    Mutation(
        "leases are not renewed", _BROKER, _HEARTBEAT,
        "        await self._renew(broker, due)\n", "",
        "worker/test_heartbeat.py",
    ),
    Mutation(
        "a run goes on after its lease is lost", _BROKER, _HEARTBEAT,
        "call_on(self._worker_loop, run.lose)\n", "pass\n",
        "worker/test_heartbeat.py",
    ),
    Mutation(
        "a renewal does not deliver a cancel request", _BROKER, _HEARTBEAT,
        "call_on(self._worker_loop, run.cancel_requested)\n", "pass\n",
        "worker/test_heartbeat.py",
    ),
    Mutation(
        "a worker relies on a shared heartbeat that was not confirmed", _BROKER, _HEARTBEAT,
        "            self._unconfirmed = not await", "            self._unconfirmed = False and not await",
        "worker/test_shared_beats.py",
    ),
    Mutation(
        "a killed child that stores the heartbeats keeps the others waiting", _BROKER,
        "cli/worker/beat_relay.py", "        _confirm(others, False)\n", "",
        "cli/test_beat_relay.py",
    ),
    Mutation(
        "a late reply confirms a later batch of heartbeats", _BROKER, "cli/worker/beat_relay.py",
        "[0] == number:", "[0] is not None:",
        "cli/test_beat_relay.py",
    ),
    Mutation(
        "jobs that have not begun are not released at shutdown", _BROKER, _WORKER,
        "        self._release(slots.take_waiting())\n", "        slots.take_waiting()\n",
        "worker/test_start_and_stop.py",
    ),
    Mutation(
        "running jobs are not released at the end of a shutdown", _BROKER, _WORKER,
        "                run.abandoned = True\n"
        "                self._settle(run, Settlement(run.job, Transition.RELEASE))\n",
        "                run.abandoned = True\n",
        "worker/test_start_and_stop.py",
    ),
    Mutation(
        "an outcome is dropped in an outage", _BROKER, "worker/settler.py",
        "                await backoff.wait(self._clock)\n",
        "                return [SettleResult(run.job.key, applied=False) for run, _ in batch]\n",
        "worker/test_settler.py",
    ),
    Mutation(
        "an outcome that is refused is dropped", _BROKER, "worker/settler.py",
        "            self.put(run, Settlement.nack(run.job, reason))", "            assert reason",
        "worker/test_settler.py",
    ),
    Mutation(
        "a batch fails with its bad item", _BROKER, "broker/batcher.py",
        "                        refused.extend(batch)", "                        self._fail(batch, error)",
        "broker/test_batches.py",
    ),
    Mutation(
        "a reply to a cancelled claim is dropped", _BROKER, "broker/batcher.py",
        "            elif self._undelivered is not None:\n                self._undelivered(reply)",
        "            pass",
        "broker/test_abandoned_claims.py",
    ),
    Mutation(
        "a timer that ends early reads the lead", ("sqlite",), "broker/leader_election.py",
        "self._look_at - _EARLY <= started", "self._look_at <= started",
        "conformance/test_leader_election.py",
    ),
)  # fmt: skip
