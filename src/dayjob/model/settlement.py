"""Settlements end claims. Build one with a class method of ``Settlement``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from msgspec import Struct

from dayjob.model.config import Retention
from dayjob.model.durations import Duration
from dayjob.model.job import Job, JobState, NewJob, id_text
from dayjob.model.lifecycle import Transition


class Settlement(Struct, frozen=True):
    """The end of one claim, for ``Broker.settle_many``."""

    job: Job
    transition: Transition
    error: str | BaseException | None = None
    delay: Duration | None = None
    result: bytes | None = None
    enqueue: Sequence[NewJob] = ()
    kv: Mapping[bytes, bytes] | None = None
    retention: Retention | None = None
    """The retention of the job, if it differs from that of the queue."""
    progress: tuple[float, str] | None = None
    """The last progress of the run, if it may not be stored yet."""
    max_attempts: int | None = None
    """The attempts that the job has from now on, with a nack. None: as they are."""
    charges: Mapping[str, int] | None = None
    """The units that the run has used, by the name of the limit. Rates count them instead of the job's."""

    @classmethod
    def ack(
        cls,
        job: Job,
        *,
        result: bytes | None = None,
        enqueue: Sequence[NewJob] = (),
        kv: Mapping[bytes, bytes] | None = None,
    ) -> Self:
        """Success. Follow-up jobs and kv writes commit with it, or not at all."""
        return cls(job, Transition.ACK, result=result, enqueue=enqueue, kv=kv)

    @classmethod
    def nack(cls, job: Job, error: str | BaseException, *, delay: Duration | None = None) -> Self:
        """Failure. Retry after ``delay``, or the queue's back-off, while attempts are left."""
        return cls(job, Transition.NACK, error=error, delay=delay)

    @classmethod
    def dead_letter(cls, job: Job, reason: str | BaseException) -> Self:
        """Permanent failure, regardless of the attempts."""
        return cls(job, Transition.DEAD_LETTER, error=reason)

    @classmethod
    def release(cls, job: Job) -> Self:
        """Return the job to the queue at once. The run does not count as an attempt."""
        return cls(job, Transition.RELEASE)

    @classmethod
    def snooze(cls, job: Job, delay: Duration, *, reason: str | None = None) -> Self:
        """Return the job to the queue after ``delay``, uncounted, with ``reason`` as last error."""
        return cls(job, Transition.SNOOZE, delay=delay, error=reason)

    @classmethod
    def mark_cancelled(cls, job: Job) -> Self:
        """End the job as cancelled: the handler stopped because of a cancel."""
        return cls(job, Transition.MARK_CANCELLED)


class SettleResult(Struct, frozen=True, gc=False):
    """The result of one settlement: whether it was applied, and the new state.

    ``applied`` is false if the claim was lost. Then nothing was changed.
    """

    key: bytes
    applied: bool
    state: JobState | None = None

    @property
    def id(self) -> str:
        return id_text(self.key)

    @property
    def lost(self) -> bool:
        return not self.applied
