"""Who is at work, and why a job is not: what ``workers()`` and ``explain()`` answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from dayjob.model.durations import SECOND, to_datetime
from dayjob.model.job import Job, JobState

COUNTED_AHEAD = 10_000
"""How many jobs ahead are counted; beyond that there are just many."""


class WorkerInfo(Struct, frozen=True):
    """A live worker, as it last told of itself."""

    id: str
    """Its own, and new with each start; jobs that it runs carry it as ``worker``."""
    name: str
    app: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    """None named: all of them."""
    tasks: tuple[str, ...]
    slots: int
    running: int
    started_us: int
    seen_us: int

    @property
    def started(self) -> datetime:
        return to_datetime(self.started_us)

    @property
    def seen(self) -> datetime:
        return to_datetime(self.seen_us)

    def takes(self, queue: str) -> bool:
        return not self.queues or queue in self.queues


class Reason(Struct, frozen=True):
    """One cause: a word for programs, a sentence for people, and the values in it."""

    code: str
    text: str
    data: dict[str, Any] = {}


class Explanation(Struct, frozen=True):
    """Why a job is not running (or that it is), the main reason first."""

    id: str
    state: JobState | None
    reasons: tuple[Reason, ...]

    @property
    def text(self) -> str:
        return "\n".join(reason.text for reason in self.reasons)

    def __str__(self) -> str:
        return self.text


class Situation(Struct, frozen=True):
    """What is known around a job at some moment."""

    now: int
    paused: bool
    ahead: int
    workers: Sequence[WorkerInfo]


def explain(id: str, job: Job | None, around: Situation) -> Explanation:
    """The reasons why the job is where it is."""
    if job is None:
        text = "There is no such job: it never was, or it has finished and is not kept."
        return Explanation(id, None, (Reason("unknown", text),))
    if job.state is JobState.RUNNING:
        reasons = _running(job, around)
    elif job.state.finished:
        reasons = [_finished(job)]
    else:
        reasons = _waiting(job, around)
    return Explanation(job.id, job.state, tuple(reasons))


def _waiting(job: Job, around: Situation) -> list[Reason]:
    reasons = []
    if job.state is JobState.SCHEDULED:
        reasons.append(_scheduled(job, around))
    if around.paused:
        reasons.append(
            Reason("paused", f"Queue {job.queue!r} is paused: resume it to go on.", {"queue": job.queue})
        )
    reasons += _nobody(job, around)
    if job.state is JobState.PENDING:
        if around.ahead:
            many = around.ahead >= COUNTED_AHEAD
            shown = f"{COUNTED_AHEAD:,}+" if many else f"{around.ahead:,}"
            reasons.append(
                Reason(
                    "behind",
                    f"It is behind {shown} job{'' if around.ahead == 1 else 's'} of queue {job.queue!r}.",
                    {"ahead": around.ahead, "more": many, "queue": job.queue},
                )
            )
        elif not reasons:
            reasons.append(
                Reason(
                    "next",
                    f"It is the next job of queue {job.queue!r}: the next free slot of a worker takes it.",
                    {"queue": job.queue},
                )
            )
    return reasons


def _scheduled(job: Job, around: Situation) -> Reason:
    until = to_datetime(job.run_us)
    when = f"{until:%Y-%m-%d %H:%M:%S} UTC ({_distance(job.run_us - around.now)})"
    data: dict[str, Any] = {"run_at": until.isoformat()}
    if job.attempts == 0:
        return Reason("scheduled", f"It is scheduled until {when}.", data)
    data |= {"retry": job.attempts, "retries": job.max_attempts - 1, "error": job.last_error}
    which = f"retry {job.attempts} of {job.max_attempts - 1}"
    return Reason("retry", f"It waits for {which}, due {when}, after: {_short(job.last_error)}", data)


def _nobody(job: Job, around: Situation) -> list[Reason]:
    """What no live worker does for the job."""
    takers = [worker for worker in around.workers if worker.takes(job.queue)]
    if not takers:
        others = f" The {len(around.workers)} that are alive take others." if around.workers else ""
        text = f"No live worker takes queue {job.queue!r}.{others}"
        return [Reason("no_worker_for_queue", text, {"queue": job.queue, "workers": len(around.workers)})]
    if job.task and not any(job.task in worker.tasks for worker in takers):
        text = f"No live worker of queue {job.queue!r} knows the task {job.task!r}."
        return [Reason("no_worker_for_task", text, {"task": job.task, "workers": len(takers)})]
    return []


def _running(job: Job, around: Situation) -> list[Reason]:
    since = job.claimed_us or around.now
    who = f" by worker {job.worker}" if job.worker else ""
    attempt = f"attempt {job.attempts} of {job.max_attempts}"
    text = f"It has been running{who} for {_span(around.now - since)}, {attempt}."
    data = {
        "since": to_datetime(since).isoformat(),
        "worker": job.worker,
        "attempt": job.attempts,
        "max_attempts": job.max_attempts,
    }
    reasons = [Reason("running", text, data)]
    if job.cancel_requested:
        reasons.append(Reason("cancel_requested", "It was asked to stop, and has not ended yet."))
    if job.lease_us is not None and job.lease_us <= around.now:
        ago = _span(around.now - job.lease_us)
        reasons.append(
            Reason("lease_expired", f"Its lease expired {ago} ago: it will be taken from its worker.")
        )
    return reasons


def _finished(job: Job) -> Reason:
    at = "" if job.finished_us is None else f" at {to_datetime(job.finished_us):%Y-%m-%d %H:%M:%S} UTC"
    data: dict[str, Any] = {
        "finished_at": None if job.finished_us is None else to_datetime(job.finished_us).isoformat(),
        "error": job.last_error,
    }
    if job.state is JobState.DONE:
        return Reason("done", f"It succeeded{at}.", data)
    if job.state is JobState.CANCELLED:
        why = f" ({_short(job.last_error)})" if job.last_error else ""
        return Reason("cancelled", f"It was cancelled{at}{why}.", data)
    data |= {"attempts": job.attempts, "max_attempts": job.max_attempts}
    after = f"after {job.attempts} of {job.max_attempts} attempts"
    return Reason("dead", f"It is dead{at}, {after}, because: {_short(job.last_error)}", data)


def _short(error: str | None) -> str:
    """The line of an error that says what it was."""
    lines = (error or "").strip().splitlines() or ["no reason given"]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line if len(line) <= 300 else f"{line[:297]}..."


def _distance(micros: int) -> str:
    return f"in {_span(micros)}" if micros > 0 else "due now"


def _span(micros: int) -> str:
    seconds = max(micros, 0) / SECOND
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
