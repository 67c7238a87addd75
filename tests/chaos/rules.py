"""The promises of dayjob as rules over a history. Each rule yields the jobs that break it.

A rule reports only states that no order of the recorded calls explains: a call without an answer may have
been applied or not, and takes effect between its beginning and its answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf

from msgspec import Struct

from dayjob.engines.base import ID_RESERVATION
from dayjob.model.durations import SECOND
from dayjob.model.job import LEASE_EXPIRED, NORMAL
from tests.chaos.history import Grant, History, Insert, Job
from tests.chaos.record import FinalJob


class Violation(Struct, frozen=True):
    """``id`` is the job, queue or schedule that breaks the rule."""

    rule: str
    id: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.id}: {self.text}"


Finding = tuple[str, str]
Rule = Callable[[History], Iterator[Finding]]

FINISHED = ("done", "dead", "cancelled")
UNCOUNTED = ("release", "snooze")
HANDOFF = 5.0
"""Seconds after a fault in which a job may be on its way to a claim that has gone."""
WAITING = ("scheduled", "pending", "limited")


def check(history: History) -> list[Violation]:
    """Return all violations. Jobs that were at risk by contract are left out."""
    return [
        Violation(rule.__name__, id, text)
        for rule in RULES
        for id, text in rule(history)
        if not history.is_at_risk(id)
    ]


# Helpers.


def _final(history: History) -> dict[str, FinalJob]:
    return {job.id: job for job in history.final.jobs}


def _may_be_gone(history: History, job: Job) -> bool:
    """Whether a call or the retention of its queue explains that the job is not there."""
    if job.changed("purge") or any(change.verb == "purge_dead" for change in history.queue_changes):
        return True
    if job.item is None or job.item.queue in history.setup.kept:
        return False
    return bool(
        any(settlement.possible and settlement.transition != "release" for settlement in job.settlements)
        or job.changed("cancel")
        or job.item.expires
    )


def _was_there(history: History, final: dict[str, FinalJob], id: str) -> bool:
    """Whether the job is there, or was: it was claimed, ended or changed."""
    job = history.jobs.get(id)
    return id in final or (
        job is not None
        and bool(job.grants or job.ended or any(each.answered and each.possible for each in job.changes))
    )


def _requeues(history: History, job: Job) -> int:
    return len(job.changed("requeue")) + sum(
        change.verb == "requeue_dead" and change.possible for change in history.queue_changes
    )


def _ends_without_settlement(job: Job) -> int:
    """Return how often a duty has ended a run of the job, as far as reported."""
    return sum(ended.old_state == "running" for ended in job.ended)


def _pairs(job: Job) -> Iterator[tuple[Grant, Grant]]:
    """Yield each claim with the next one that is recorded."""
    return pairwise(job.grants)


def _ended_by_holder(job: Job, grant: Grant, before: float) -> bool:
    """Whether its holder may have ended the claim before this time."""
    return any(each.possible and each.begin <= before for each in job.settlements_of(grant.claim))


# Rules.


def accepted_jobs_are_accounted_for(history: History) -> Iterator[Finding]:
    """Each acknowledged job is there once, or a call explains that it has gone."""
    listed = Counter(job.id for job in history.final.jobs)
    for job in history.jobs.values():
        created = any(insert.created for insert in job.inserts) or any(
            parent.applied for parent in job.parents
        )
        if listed[job.id] > 1:
            yield job.id, f"is listed {listed[job.id]} times"
        elif created and not listed[job.id] and not _may_be_gone(history, job):
            yield job.id, "was acknowledged and is gone"


def no_job_comes_from_nowhere(history: History) -> Iterator[Finding]:
    """Each job that is there was enqueued by a recorded call or by a schedule."""
    for listed in history.final.jobs:
        if listed.schedule is None:
            job = history.jobs.get(listed.id)
            if job is None or not (job.inserts or job.parents):
                yield listed.id, "is there, and no call has enqueued it"
            elif all(insert.created is False for insert in job.inserts) and not job.parents:
                yield listed.id, "is there, and each enqueue of it reported an older one"


def ids_are_created_once(history: History) -> Iterator[Finding]:
    """An id that a caller gave is created once, for the time of its reservation."""
    for job in history.jobs.values():
        created = [insert for insert in job.inserts if insert.created and insert.item.reserved]
        if len(created) > 1:
            begin, end = min(each.begin for each in created), max(each.end for each in created)
            if history.step_during(begin, end) * SECOND < ID_RESERVATION:
                yield job.id, f"was created {len(created)} times"


def finished_jobs_stay_finished(history: History) -> Iterator[Finding]:
    """The outcome of a run stands: no claim after it, and no other final state, without a requeue."""
    final = _final(history)
    for job in history.jobs.values():
        if _requeues(history, job) or job.lives > 1:
            continue
        for settlement in job.settlements:
            if not settlement.applied or settlement.state not in FINISHED:
                continue
            later = [grant for grant in job.grants if grant.begin > settlement.end]
            if later:
                yield job.id, f"was claimed after it was {settlement.state}"
            listed = final.get(job.id)
            if listed is not None and listed.state != settlement.state:
                yield job.id, f"was {settlement.state} and is {listed.state}"


def claims_are_settled_once(history: History) -> Iterator[Finding]:
    """At most one settlement of a claim is applied, and at most one ack of a job."""
    for job in history.jobs.values():
        applied = Counter(each.claim for each in job.settlements if each.applied)
        for claim, number in applied.items():
            if number > 1:
                yield job.id, f"the claim {claim} was settled {number} times"
        acks = sum(each.applied and each.state == "done" for each in job.settlements)
        if acks > max(job.lives, 1):
            yield job.id, f"was acked {acks} times"


def stale_claims_settle_nothing(history: History) -> Iterator[Finding]:
    """A settlement or a second run that begins after a newer claim was granted changes nothing."""
    for job in history.jobs.values():
        recorded = {grant.claim for grant in job.grants}
        for settlement in job.settlements:
            if settlement.applied and settlement.claim in recorded:
                newer = job.granted_after(settlement.claim)
                if any(grant.end < settlement.begin for grant in newer):
                    yield job.id, f"the {settlement.transition} of a stale claim was applied"


def claims_exclude_each_other(history: History) -> Iterator[Finding]:
    """A job is granted again only after its claim was settled, expired, or lost its worker."""
    for job in history.jobs.values():
        unsettled = 0
        for earlier, later in _pairs(job):
            if earlier.item.epoch == later.item.epoch and job.lives <= 1:
                yield job.id, f"two claims have the epoch {earlier.item.epoch}"
            elif not _ended_by_holder(job, earlier, later.end) and not history.duty_unanswered(
                earlier.begin, later.end
            ):
                unsettled += 1
        reported = _ends_without_settlement(job)
        if unsettled > reported:
            yield job.id, f"was granted {unsettled} times during a live claim, of which {reported} were ended"


def leases_are_respected(history: History) -> Iterator[Finding]:
    """A lease ends a claim only when it has expired by the engine's clock, or the process is dead."""
    for job in history.jobs.values():
        reasons = {ended.error for ended in job.ended if ended.old_state == "running"}
        for earlier, later in _pairs(job):
            if (
                later.item.granted_us < earlier.lease_us
                and reasons == {LEASE_EXPIRED}
                and not _ended_by_holder(job, earlier, later.end)
                and not history.died_before(earlier.process, later.end)
                and not history.step_during(earlier.begin, later.end)
            ):
                left = (earlier.lease_us - later.item.granted_us) / SECOND
                yield job.id, f"was granted again {left:.3f} s before the lease of a live process expired"


def lost_claims_have_a_cause(history: History) -> Iterator[Finding]:
    """A settlement is reported lost only if the claim was ended, or the job given to another."""
    for job in history.jobs.values():
        for settlement in job.settlements:
            if not settlement.lost:
                continue
            explained = (
                bool(job.granted_after(settlement.claim))
                or _ends_without_settlement(job) > 0
                or any(
                    other.claim == settlement.claim and other.possible and other is not settlement
                    for other in job.settlements
                )
                or history.duty_unanswered(_granted_at(job, settlement.claim), settlement.end)
            )
            if not explained:
                yield (
                    job.id,
                    f"its {settlement.transition} was reported lost, and nothing had ended the claim",
                )


def _granted_at(job: Job, claim: str) -> float:
    return next((grant.begin for grant in job.grants if grant.claim == claim), 0.0)


def attempts_are_bounded(history: History) -> Iterator[Finding]:
    """A claim is within the attempts of its job, and each run that counts raises them."""
    for job in history.jobs.values():
        if any(not 1 <= grant.item.attempts <= grant.item.max_attempts for grant in job.grants):
            yield job.id, "was claimed with more attempts than it has"
        if _requeues(history, job) or job.lives > 1:
            continue
        for earlier, later in _pairs(job):
            ends = [each for each in job.settlements_of(earlier.claim) if each.possible]
            counts = not ends or (len(ends) == 1 and ends[0].applied and ends[0].transition == "nack")
            reprieved = not ends and earlier.item.attempts == earlier.item.max_attempts
            least = earlier.item.attempts + (counts and not reprieved)
            if later.item.attempts < least:
                yield job.id, f"a run with attempt {earlier.item.attempts} was not counted"
    for listed in history.final.jobs:
        if listed.attempts > listed.max_attempts:
            yield listed.id, f"has {listed.attempts} of {listed.max_attempts} attempts"


def runs_are_not_endless(history: History) -> Iterator[Finding]:
    """A job that ends its workers is dead after its attempts, and one run more if it may be innocent."""
    for job in history.jobs.values():
        uncounted = {each.claim for each in job.settlements if each.possible and each.transition in UNCOUNTED}
        runs = sum(grant.claim not in uncounted for grant in job.grants)
        most = max((grant.item.max_attempts for grant in job.grants), default=0) + 1 + len(uncounted)
        if runs > most * (max(job.lives, 1) + _requeues(history, job)):
            yield job.id, f"ran {runs} times"


def runs_are_once_per_claim(history: History) -> Iterator[Finding]:
    """A worker calls the handler of a claim once."""
    for job in history.jobs.values():
        for claim, number in Counter(run.claim for run in job.runs).items():
            if number > 1:
                yield job.id, f"the handler ran {number} times under the claim {claim}"


def _release_of(history: History, job: Job, insert: Insert) -> tuple[float, float]:
    """Return when the job released its dedup key: at the earliest, and at the latest."""
    earliest = latest = inf
    if insert.item.dedup_until == "claimed":
        earliest = min((grant.begin for grant in job.grants), default=inf)
        latest = min((grant.end for grant in job.grants), default=inf)
        earliest = min(earliest, history.claim_unanswered(insert.item.queue, insert.begin, inf))
    for settlement in job.settlements:
        if settlement.possible and (settlement.state in FINISHED or not settlement.answered):
            earliest = min(earliest, settlement.begin)
        if settlement.applied and settlement.state in FINISHED:
            latest = min(latest, settlement.end)
    for change in job.changed("cancel", "purge"):
        earliest = min(earliest, change.begin)
    if insert.item.expires or job.ended or job.unseen or history.duty_unanswered(insert.begin, inf):
        earliest = insert.begin
    return earliest, latest


def dedup_keys_have_one_holder(history: History) -> Iterator[Finding]:
    """No two jobs hold a dedup key of a queue at the same time."""
    created: defaultdict[tuple[str, str], list[Insert]] = defaultdict(list)
    for job in history.jobs.values():
        for insert in job.inserts:
            if insert.created and insert.item.dedup_key is not None:
                created[insert.item.queue, insert.item.dedup_key].append(insert)
    for (_, key), inserts in created.items():
        inserts.sort(key=lambda insert: insert.end)
        for earlier, later in pairwise(inserts):
            if history.is_at_risk(earlier.id):
                continue
            job = history.jobs[earlier.id]
            released, _ = _release_of(history, job, earlier)
            if earlier.end < later.begin and later.end < released:
                yield later.id, f"got the dedup key {key!r} while {earlier.id} held it"
    holders = Counter(
        (job.queue, job.dedup_key)
        for job in history.final.jobs
        if job.dedup_key is not None
        and (job.state in WAITING or (job.dedup_until == "settled" and job.state == "running"))
        and not history.jobs.get(job.id, Job(job.id)).grants
    )
    for (_, held), number in holders.items():
        if number > 1:
            yield str(held), f"{number} jobs hold this dedup key"


def dedup_answers_name_a_holder(history: History) -> Iterator[Finding]:
    """An enqueue that reports an older job names one that held the key, or has the id."""
    for job in history.jobs.values():
        for insert in job.inserts:
            if insert.created is not False or insert.holder == job.id:
                continue
            holder = history.jobs.get(insert.holder)
            if history.is_at_risk(insert.holder):
                continue
            if holder is None:
                yield job.id, f"was answered with the unknown job {insert.holder}"
            elif insert.item.dedup_key is None:
                yield job.id, f"has no dedup key, and was answered with {insert.holder}"
            elif holder.inserts and min(each.begin for each in holder.inserts) > insert.end:
                yield job.id, f"was answered with {insert.holder}, which was enqueued later"
            else:
                released = max(
                    (_release_of(history, holder, each)[1] for each in holder.inserts), default=inf
                )
                if released < insert.begin:
                    yield job.id, f"was answered with {insert.holder}, which had released the key"


def effects_come_with_their_ack(history: History) -> Iterator[Finding]:
    """Follow-up jobs and kv writes of a settlement are there exactly if it was applied."""
    final, keys = _final(history), set(history.final.kv)
    for job in history.jobs.values():
        for settlement in job.settlements:
            parts = [
                *((item.id, _was_there(history, final, item.id)) for item in settlement.insert),
                *((key, key in keys) for key in settlement.kv),
            ]
            if not parts:
                continue
            there = [name for name, exists in parts if exists]
            missing = [name for name, exists in parts if not exists]
            if settlement.applied and missing:
                yield job.id, f"was settled without its effects: {missing}"
            elif settlement.lost and there:
                yield job.id, f"its settlement was lost, and its effects are there: {there}"
            elif there and missing:
                yield job.id, f"its effects are there in part: {there} without {missing}"
            elif there and job.id in final and final[job.id].state != "done":
                yield job.id, f"is {final[job.id].state}, and the effects of its ack are there"


def kv_comes_with_its_job(history: History) -> Iterator[Finding]:
    """The kv writes of an enqueue are there exactly if its job was stored."""
    final, keys = _final(history), set(history.final.kv)
    for job in history.jobs.values():
        for insert in job.inserts:
            there = [key for key in insert.item.kv if key in keys]
            if insert.created and len(there) < len(insert.item.kv):
                yield job.id, "was enqueued without its kv writes"
            elif insert.created is False and there:
                yield job.id, "was not stored, and its kv writes are there"
            elif there and not insert.answered and not _was_there(history, final, job.id):
                yield job.id, "is not there, and its kv writes are"


def batches_are_whole(history: History) -> Iterator[Finding]:
    """Of an enqueue without an answer, all jobs are there or none."""
    final = _final(history)
    calls: defaultdict[tuple[str, float], list[Insert]] = defaultdict(list)
    for job in history.jobs.values():
        for insert in job.inserts:
            if insert.created is None and insert.item.dedup_key is None and len(job.inserts) == 1:
                calls[insert.process, insert.begin].append(insert)
    for inserts in calls.values():
        missing = [
            insert.id
            for insert in inserts
            if not _was_there(history, final, insert.id)
            and not _may_be_gone(history, history.jobs[insert.id])
        ]
        if 0 < len(missing) < len(inserts):
            yield missing[0], f"is missing from a batch of {len(inserts)} jobs that is stored in part"


def schedules_fire_once(history: History) -> Iterator[Finding]:
    """Each due time of a schedule has one job; none is missing, unless the clock was set."""
    fired: defaultdict[str, list[int]] = defaultdict(list)
    for job in history.final.jobs:
        if job.schedule is not None and job.due_us is not None:
            fired[job.schedule].append(job.due_us)
    for schedule in history.final.schedules:
        times = Counter(fired[schedule.id])
        for due, number in times.items():
            if number > 1:
                yield schedule.id, f"fired {number} times for {due}"
        if schedule.last_us is not None and not history.clock_was_set:
            expected = range(schedule.first_us, schedule.last_us + 1, schedule.every_us)
            missing = [due for due in expected if due not in times]
            if missing:
                yield schedule.id, f"did not fire for {missing[:5]}, of {len(missing)}"


def limits_are_held(history: History) -> Iterator[Finding]:
    """The jobs that surely run at one time hold no more units of a bucket than its limit."""
    changes: defaultdict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for job in history.jobs.values():
        if history.is_at_risk(job.id):
            continue  # Its claim may have been lost by contract, and the room of its limit with it.
        for grant in job.grants:
            for bucket, units in grant.item.limits.items():
                end = _surely_live_until(history, job, grant)
                if end > grant.end:
                    changes[bucket] += [(grant.end, units, job.id), (end, -units, job.id)]
    for bucket, steps in changes.items():
        most = history.setup.limits.get(bucket, history.setup.limits.get(bucket.partition(":")[0]))
        running = 0
        for _, units, id in sorted(steps):
            running += units
            if most is not None and running > most and units < running:
                yield id, f"{running} units of {bucket!r} ran at once, of {most}"
                break


def _surely_live_until(history: History, job: Job, grant: Grant) -> float:
    """Return until when the claim was certainly current."""
    end = grant.begin + (grant.item.lease_us - grant.item.granted_us) / SECOND
    for settlement in job.settlements_of(grant.claim):
        end = min(end, settlement.begin)
    if _ends_without_settlement(job) or history.step_during(grant.begin, end):
        return grant.end
    return grant.end if history.duty_unanswered(grant.begin, end) else end


def order_is_kept(history: History) -> Iterator[Finding]:
    """A single consumer gets the jobs of a queue by priority, then in the order of their ids.

    In a time with faults a job may be on its way to a claim that has gone, and others are claimed meanwhile.
    """
    for queue in history.setup.ordered:
        first: dict[str, Grant] = {}
        for job in history.jobs.values():
            grants = [grant for grant in job.grants if grant.item.queue == queue]
            if grants:
                first[job.id] = min(grants, key=lambda grant: grant.begin)
        plain = [
            insert
            for job in history.jobs.values()
            for insert in job.inserts
            if insert.item.queue == queue
            and insert.created
            and not (insert.item.delayed or insert.item.expires or job.changes)
        ]
        claimed = sorted(first.values(), key=lambda grant: grant.begin)
        waiting = sorted(plain, key=lambda insert: insert.end)
        yield from _overtaken(history, waiting, claimed, first)


def _overtaken(
    history: History, waiting: list[Insert], claimed: list[Grant], first: dict[str, Grant]
) -> Iterator[Finding]:
    for grant in claimed:
        for insert in waiting:
            if insert.end >= grant.begin:
                break
            own = first.get(insert.id)
            priority = NORMAL if insert.item.priority is None else insert.item.priority
            if (
                (priority, insert.id) < (grant.item.priority, grant.id)
                and (own is None or own.begin > grant.end)
                and history.claim_unanswered(insert.item.queue, insert.begin, grant.end) == inf
                and not history.jobs[insert.id].unseen
                and not history.faults_during(insert.begin - HANDOFF, grant.end)
            ):
                yield insert.id, f"waited, and {grant.id} was claimed before it"
        waiting = [
            insert for insert in waiting if insert.id not in first or first[insert.id].begin > grant.begin
        ]


def deaths_are_announced(history: History) -> Iterator[Finding]:
    """Each death is reported: by the answer of a settlement or the report of a duty, and to observers."""
    for listed in history.final.jobs:
        job = history.jobs.get(listed.id)
        if listed.state != "dead" or job is None:
            continue
        names = [each.process for each in job.settlements if each.state == "dead"]
        names += [name for name, each in job.reported if each.state == "dead"]
        if not names:
            unsure = any(not each.answered for each in job.settlements) or any(
                not history.processes[name].closed for name in job.ended_by
            )
            at = None if listed.finished_us is None else history.host_time(listed.finished_us)
            begin, end = (0.0, inf) if at is None else (at - 1, at + 1)
            if not unsure and not history.duty_unanswered(begin, end):
                yield job.id, "is dead, and no call has reported it"
        elif not job.announced:
            silent = [each for each in map(history.processes.__getitem__, names) if each.announces]
            if silent and all(process.closed for process in silent):
                yield job.id, f"died in {silent[0].name}, and observers were not notified"


def no_job_is_stuck(history: History) -> Iterator[Finding]:
    """After a drain no job waits for a worker or runs. One that is due later by the clock may wait."""
    if not history.setup.drained:
        return
    for listed in history.final.jobs:
        later = listed.state == "scheduled" and history.clock_was_set
        if listed.state not in FINISHED and not later:
            yield listed.id, f"is still {listed.state}"


def counters_equal_the_listing(history: History) -> Iterator[Finding]:
    """The counters of each queue are those of its jobs; ``done`` counts all successes of kept queues."""
    listed = Counter((job.queue, job.state) for job in history.final.jobs)
    for queue, stats in history.final.stats.items():
        for state, counted in stats.items():
            found = listed[queue, state]
            if counted != found and (state != "done" or queue in history.setup.kept):
                yield queue, f"{counted} jobs are counted as {state}, and {found} are listed"


RULES: tuple[Rule, ...] = (
    accepted_jobs_are_accounted_for,
    no_job_comes_from_nowhere,
    ids_are_created_once,
    finished_jobs_stay_finished,
    claims_are_settled_once,
    stale_claims_settle_nothing,
    claims_exclude_each_other,
    leases_are_respected,
    lost_claims_have_a_cause,
    attempts_are_bounded,
    runs_are_not_endless,
    runs_are_once_per_claim,
    dedup_keys_have_one_holder,
    dedup_answers_name_a_holder,
    effects_come_with_their_ack,
    kv_comes_with_its_job,
    batches_are_whole,
    schedules_fire_once,
    limits_are_held,
    order_is_kept,
    deaths_are_announced,
    no_job_is_stuck,
    counters_equal_the_listing,
)
