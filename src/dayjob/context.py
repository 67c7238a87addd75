"""The context of a run: its job, its signals, its progress, and follow-up work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import Any

from msgspec.structs import replace

from dayjob.errors import InvalidState
from dayjob.model.job import NORMAL, Job, JobState, NewJob, id_key, id_text
from dayjob.model.limits import charges_of
from dayjob.model.names import check_kv
from dayjob.runtime.ids import new_key
from dayjob.runtime.stop_signal import StopSignal

_log = logging.getLogger("dayjob.job")

CURRENT: ContextVar[Context | None] = ContextVar("dayjob_current", default=None)
"""The context of the current run, which ``current`` reads."""

CALLING_THREAD: ContextVar[Executor | None] = ContextVar("dayjob_calling_thread", default=None)
"""Runs functions in the thread of a test that drains the app. None outside of such a drain."""

Report = Callable[["Context", float, str], None]
"""Receives the progress of a run. The worker stores it at most once per 250 ms."""


class Context:
    """The run of a job: its claim, its signals, and the writes that commit with its success."""

    __slots__ = (
        "__weakref__", "_log", "_report", "cancelled", "charges", "follow_ups", "job", "kv", "shutting_down",
        "state",
    )  # fmt: skip

    def __init__(
        self, job: Job, shutting_down: StopSignal, state: Any = None, report: Report | None = None
    ) -> None:
        self.job = job
        self.cancelled = StopSignal()
        self.shutting_down = shutting_down
        self.state = state
        self.follow_ups: Sequence[NewJob] = ()
        self.kv: Mapping[bytes, bytes] | None = None
        self.charges: Mapping[str, int] | None = None
        self._report = report
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self.job.attempts

    @property
    def epoch(self) -> int:
        """The fencing number: pass it to the systems you write to, which refuse a lower one for this id.

        It is the time of the claim in microseconds by the storage's clock, or more. So it grows with each
        claim, also if the id is used again, unless that clock is set back in between.
        """
        return self.job.epoch

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have the fields of ``log_fields``."""
        if self._log is None:
            self._log = _JobLog(_log, log_fields(self.job))
        return self._log

    def progress(self, fraction: float, message: str = "") -> None:
        """Report the progress of the run, 0...1. Callable from a coroutine or a thread."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ValueError(f"fraction={fraction!r}: pass a number from 0 to 1")
        if self._report is not None:
            self._report(self, float(fraction), str(message))

    def charge(self, limit: str, units: int) -> None:
        """Replace the units that this run takes from the rate of a limit, when it ends.

        Often they are known only after the work, as with tokens of a model. The last call for a limit counts.
        """
        charges_of(self.job, {limit: units})
        self.charges = {**(self.charges or {}), limit: units}

    def then(self, *calls: Any, kv: Mapping[bytes, bytes] | None = None) -> list[str]:
        """Enqueue ``task.bind(...)`` calls and write kv values in the commit of this run's success.

        Return the ids that the jobs will have. A job whose dedup key is held at the commit is not stored.
        """
        new = [with_id(_as_new_job(call)) for call in calls]
        if kv is not None:
            self.kv = {**(self.kv or {}), **check_kv(kv)}
        if new:
            self.follow_ups = [*self.follow_ups, *new]
        return [str(job.id) for job in new]

    def __repr__(self) -> str:
        return f"Context(job={self.job.id!r}, task={self.job.task!r}, attempt={self.attempt})"


def log_fields(job: Job) -> dict[str, Any]:
    """Return the fields of the log records of a job: id, queue, task, attempt; worker and tenant if any."""
    fields = {"job_id": job.id, "queue": job.queue, "task": job.task, "attempt": job.attempts}
    given = {"worker": job.worker, "tenant": job.tenant}
    return fields | {name: value for name, value in given.items() if value is not None}


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields of the job to the caller's ``extra``."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


def _as_new_job(call: Any) -> NewJob:
    if isinstance(call, NewJob):
        return call
    make = getattr(call, "new_job", None)
    if make is None:
        raise TypeError(f"{call!r} is a {type(call).__name__}: pass task.bind(...)")
    job: NewJob = make()
    return job


def with_id(job: NewJob) -> NewJob:
    """Return the job with its id as text. A new id needs no reservation: no other job has it."""
    if job.id is None:
        return replace(job, id=id_text(new_key()), reserve_id=False)
    return replace(job, id=id_text(id_key(job.id)))


def current() -> Context:
    """Return the context of the current run."""
    context = CURRENT.get()
    if context is None:
        raise InvalidState(
            "no job is running here: call current() inside a handler, or in code that it calls"
        )
    return context


def detached(task: str) -> Context:
    """Return a context for a call outside of any job."""
    job = Job(
        key=bytes(16), queue="", task=task, payload=b"", headers={}, tenant=None, priority=NORMAL,
        state=JobState.RUNNING, attempts=1, max_attempts=1, epoch=0, enqueued_us=0, run_us=0,
    )  # fmt: skip
    return Context(job, StopSignal())
