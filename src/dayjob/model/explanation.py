"""The answer of ``explain()``: why a job is not running. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dayjob.model.durations import SECOND, to_datetime
from dayjob.model.job import Job, JobState, explained
from dayjob.model.limits import LimitInfo
from dayjob.model.names import counted
from dayjob.model.worker_info import WorkerInfo

COUNTED_AHEAD = 10_000
"""Jobs that precede a pending job are counted up to this number."""


class Reason(Struct, frozen=True):
    """One reason: a code for programs, a sentence for people, and the values in it."""

    code: str
    text: str
    data: dict[str, Any] = {}


class Explanation(Struct, frozen=True):
    """The reasons why a job is not running, or that it is running. The main reason is first."""

    id: str
    state: JobState | None
    reasons: tuple[Reason, ...]

    @property
    def text(self) -> str:
        return "\n".join(reason.text for reason in self.reasons)

    def __str__(self) -> str:
        return self.text


class Situation(Struct, frozen=True):
    """The state of a job's queue and of the workers at one time."""

    now: int
    paused: bool
    ahead: int
    workers: Sequence[WorkerInfo]
    limit: LimitInfo | None = None
    """The limit that the job waits for, with the use of all its keys."""
    due: int | None = None
    """The time at which the first job of its line gets its tokens."""


def explain(id: str, job: Job | None, situation: Situation) -> Explanation:
    if job is None:
        text = "There is no such job: the id is unknown, or the job finished and is no longer kept."
        return Explanation(id, None, (Reason("unknown", text),))
    if job.state is JobState.RUNNING:
        reasons = _running(job, situation)
    elif job.state.finished:
        reasons = [_finished(job)]
    else:
        reasons = _waiting(job, situation)
    if job.suspect:
        text = f"It is suspect, so no other job starts beside it. Its last run: {_short(job.last_error)}."
        reasons.append(Reason("suspect", text, {"error": job.last_error}))
    return Explanation(job.id, job.state, tuple(reasons))


def _waiting(job: Job, situation: Situation) -> list[Reason]:
    reasons = []
    if job.state is JobState.SCHEDULED:
        reasons.append(_scheduled(job, situation))
    if situation.paused:
        text = f"Queue {job.queue!r} is paused: resume it to run its jobs."
        reasons.append(Reason("paused", text, {"queue": job.queue}))
    reasons += _no_worker(job, situation)
    if job.state is JobState.LIMITED:
        reasons.insert(0, _limited(job, situation))
    if job.state is JobState.PENDING:
        if situation.ahead:
            many = situation.ahead >= COUNTED_AHEAD
            shown = f"{COUNTED_AHEAD:,}+ jobs" if many else counted(situation.ahead, "job")
            data = {"ahead": situation.ahead, "more": many, "queue": job.queue}
            reasons.append(Reason("behind", f"It is behind {shown} of queue {job.queue!r}.", data))
        elif not reasons:
            text = f"It is the next job of queue {job.queue!r}: the next free slot of a worker claims it."
            reasons.append(Reason("next", text, {"queue": job.queue}))
    return reasons


def _scheduled(job: Job, situation: Situation) -> Reason:
    until = job.run_at
    when = f"{until:%Y-%m-%d %H:%M:%S} UTC ({_distance(job.run_us - situation.now)})"
    data: dict[str, Any] = {"run_at": until.isoformat()}
    if job.attempts == 0:
        return Reason("scheduled", f"It is scheduled until {when}.", data)
    data |= {"retry": job.attempts, "retries": job.max_attempts - 1, "error": job.last_error}
    which = f"retry {job.attempts} of {job.max_attempts - 1}"
    return Reason("retry", f"It waits for {which}, due {when}, after: {_short(job.last_error)}", data)


def _limited(job: Job, situation: Situation) -> Reason:
    name, ahead = job.limited_by or "", situation.ahead
    place = f"behind {counted(ahead, 'job')} in its line" if ahead else "first in its line"
    text = f"Limit {name!r} has no room for it: it is {place}."
    data: dict[str, Any] = {"limit": name, "ahead": ahead}
    if situation.limit is not None:
        settings = situation.limit.settings
        data |= {"running": settings.running, "rate": settings.rate, "per": settings.per / SECOND}
        if situation.due is not None:
            at = situation.due + ahead * settings.cost(dict(job.limits).get(name, 1))
            data["due_at"] = to_datetime(at).isoformat()
            text += f" Its rate admits it {_distance(at - situation.now)}."
        elif settings.running is not None:
            text += f" It waits for the end of a run: {settings.running:,} may run at once."
    return Reason("limited", text, data)


def _no_worker(job: Job, situation: Situation) -> list[Reason]:
    serving = [worker for worker in situation.workers if worker.serves(job.queue)]
    if not serving:
        live = len(situation.workers)
        others = f" {live} live worker{'s serve' if live > 1 else ' serves'} other queues." if live else ""
        text = f"No live worker serves queue {job.queue!r}: start one for it.{others}"
        return [Reason("no_worker_for_queue", text, {"queue": job.queue, "workers": live})]
    if job.task and not any(job.task in worker.tasks for worker in serving):
        text = (
            f"No live worker of queue {job.queue!r} has the task {job.task!r}: import its module where the "
            "worker's app is created, or correct its name."
        )
        return [Reason("no_worker_for_task", text, {"task": job.task, "workers": len(serving)})]
    return []


def _running(job: Job, situation: Situation) -> list[Reason]:
    since = job.claimed_us or situation.now
    worker = f" on worker {job.worker}" if job.worker else ""
    attempt = f"attempt {job.attempts} of {job.max_attempts}"
    text = f"It has been running{worker} for {_span(situation.now - since)}, {attempt}."
    data = {
        "since": to_datetime(since).isoformat(),
        "worker": job.worker,
        "attempt": job.attempts,
        "max_attempts": job.max_attempts,
    }
    reasons = [Reason("running", text, data)]
    if job.cancel_requested:
        reasons.append(Reason("cancel_requested", "A cancel is requested, and the run has not ended yet."))
    if job.lease_us is not None and job.lease_us <= situation.now:
        ago = _span(situation.now - job.lease_us)
        reasons.append(
            Reason("lease_expired", f"Its lease expired {ago} ago: the reap duty will end the claim.")
        )
    return reasons


def _finished(job: Job) -> Reason:
    ended = job.finished_at
    at = "" if ended is None else f" at {ended:%Y-%m-%d %H:%M:%S} UTC"
    data: dict[str, Any] = {"finished_at": ended and ended.isoformat(), "error": job.last_error}
    if job.state is JobState.DONE:
        return Reason("done", f"It succeeded{at}.", data)
    if job.state is JobState.CANCELLED:
        reason = f" ({_short(job.last_error)})" if job.last_error else ""
        return Reason("cancelled", f"It was cancelled{at}{reason}.", data)
    data |= {"attempts": job.attempts, "max_attempts": job.max_attempts}
    after = f"after {job.attempts} of {job.max_attempts} attempts"
    return Reason("dead", f"It failed permanently{at} {after}: {_short(job.last_error)}", data)


def _short(error: str | None) -> str:
    lines = (error or "").strip().splitlines() or ["no reason given"]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return explained(line) if len(line) <= 300 else f"{line[:297]}..."


def _distance(micros: int) -> str:
    return f"in {_span(micros)}" if micros > 0 else "due now"


def _span(micros: int) -> str:
    seconds = max(micros, 0) / SECOND
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
