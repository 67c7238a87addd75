"""Settlements: how the holder of a claim ends it. Build one with a class method of ``Settlement``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from msgspec import Struct

from dayjob.model.config import Retention
from dayjob.model.durations import Duration
from dayjob.model.job import Job, JobState, NewJob, id_text
from dayjob.model.lifecycle import Transition


class Settlement(Struct, frozen=True):
    """One claim's end, for ``Broker.settle_many``."""

    job: Job
    transition: Transition
    error: str | BaseException | None = None
    delay: Duration | None = None
    result: bytes | None = None
    enqueue: Sequence[NewJob] = ()
    kv: Mapping[bytes, bytes] | None = None
    retention: Retention | None = None
    """How long the job is kept, where that is not the queue's affair."""
    progress: tuple[float, str] | None = None
    """What the run last said of its progress, if that is not stored yet."""

    @classmethod
    def ack(
        cls,
        job: Job,
        *,
        result: bytes | None = None,
        enqueue: Sequence[NewJob] = (),
        kv: Mapping[bytes, bytes] | None = None,
    ) -> Self:
        """Success; follow-up jobs and kv writes commit with it, or not at all."""
        return cls(job, Transition.ACK, result=result, enqueue=enqueue, kv=kv)

    @classmethod
    def nack(cls, job: Job, error: str | BaseException, *, delay: Duration | None = None) -> Self:
        """Failure; it is retried after ``delay``, or the queue's backoff, while attempts are left."""
        return cls(job, Transition.NACK, error=error, delay=delay)

    @classmethod
    def dead_letter(cls, job: Job, reason: str | BaseException) -> Self:
        """Failure for good, whatever the attempts."""
        return cls(job, Transition.DEAD_LETTER, error=reason)

    @classmethod
    def release(cls, job: Job) -> Self:
        """Back to the queue at once, as if this run had not been."""
        return cls(job, Transition.RELEASE)

    @classmethod
    def snooze(cls, job: Job, delay: Duration, *, reason: str | None = None) -> Self:
        """Back to the queue after ``delay``, as if this run had not been, with ``reason`` as last error."""
        return cls(job, Transition.SNOOZE, delay=delay, error=reason)

    @classmethod
    def mark_cancelled(cls, job: Job) -> Self:
        """The handler gave up because of a cancel."""
        return cls(job, Transition.MARK_CANCELLED)


class SettleResult(Struct, frozen=True, gc=False):
    """Whether a settlement was applied, and the state that it led to.

    ``applied`` is false when the claim was no longer current: it was lost, and nothing changed.
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
