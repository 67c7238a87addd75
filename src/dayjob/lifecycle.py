"""The life of a job as one table: which event takes it from which state to which.

Every engine applies exactly these rules. Those that run in Python ask ``transition``; those whose
rules are written in SQL or Lua are compared with it by the conformance and model-based tests.
The first rule whose state, event and condition fit decides.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct

from dayjob.job import JobState


class Event(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"
    ACK = "ack"
    NACK = "nack"
    DEAD_LETTER = "dead_letter"
    RELEASE = "release"
    SNOOZE = "snooze"
    MARK_CANCELLED = "mark_cancelled"
    LEASE_EXPIRED = "lease_expired"
    DUE = "due"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REQUEUE = "requeue"


SETTLEMENTS = frozenset(
    {Event.ACK, Event.NACK, Event.DEAD_LETTER, Event.RELEASE, Event.SNOOZE, Event.MARK_CANCELLED}
)
"""The events by which the holder of a claim ends it."""


class When(Enum):
    """The condition of a rule."""

    ALWAYS = "always"
    CANCEL_REQUESTED = "a cancel is requested"
    EXHAUSTED = "no attempts are left"
    DELAYED = "the delay is above zero"


class Attempts(Enum):
    """What a rule does to ``Job.attempts``."""

    KEEP = "keep"
    COUNT = "one more"
    UNCOUNT = "one less: the run does not count"
    RESET = "back to zero"


class Rule(Struct, frozen=True):
    source: JobState
    event: Event
    when: When
    target: JobState
    attempts: Attempts = Attempts.KEEP


_S, _E, _W, _A = JobState, Event, When, Attempts

RULES: tuple[Rule, ...] = (
    Rule(_S.SCHEDULED, _E.DUE, _W.ALWAYS, _S.PENDING),
    Rule(_S.PENDING, _E.CLAIM, _W.ALWAYS, _S.RUNNING, _A.COUNT),
    Rule(_S.RUNNING, _E.ACK, _W.ALWAYS, _S.DONE),
    Rule(_S.RUNNING, _E.NACK, _W.CANCEL_REQUESTED, _S.CANCELLED),
    Rule(_S.RUNNING, _E.NACK, _W.EXHAUSTED, _S.DEAD),
    Rule(_S.RUNNING, _E.NACK, _W.DELAYED, _S.SCHEDULED),
    Rule(_S.RUNNING, _E.NACK, _W.ALWAYS, _S.PENDING),
    Rule(_S.RUNNING, _E.DEAD_LETTER, _W.ALWAYS, _S.DEAD),
    Rule(_S.RUNNING, _E.RELEASE, _W.ALWAYS, _S.PENDING, _A.UNCOUNT),
    Rule(_S.RUNNING, _E.SNOOZE, _W.CANCEL_REQUESTED, _S.CANCELLED),
    Rule(_S.RUNNING, _E.SNOOZE, _W.ALWAYS, _S.SCHEDULED, _A.UNCOUNT),
    Rule(_S.RUNNING, _E.MARK_CANCELLED, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.RUNNING, _E.LEASE_EXPIRED, _W.EXHAUSTED, _S.DEAD),
    Rule(_S.RUNNING, _E.LEASE_EXPIRED, _W.ALWAYS, _S.PENDING),
    Rule(_S.PENDING, _E.CANCEL, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.SCHEDULED, _E.CANCEL, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.PENDING, _E.EXPIRE, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.SCHEDULED, _E.EXPIRE, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.DEAD, _E.REQUEUE, _W.ALWAYS, _S.PENDING, _A.RESET),
)

_BY_EVENT: dict[tuple[JobState, Event], tuple[Rule, ...]] = {
    (state, event): tuple(rule for rule in RULES if rule.source is state and rule.event is event)
    for state in JobState
    for event in Event
}


class Change(Struct, frozen=True, gc=False):
    """The outcome of an event: the new state and the new count of attempts."""

    state: JobState
    attempts: int


def transition(
    state: JobState,
    event: Event,
    *,
    attempts: int,
    max_attempts: int,
    cancel_requested: bool = False,
    delay: int = 0,
) -> Change | None:
    """What the event makes of a job, or None if the event can't happen in that state."""
    for rule in _BY_EVENT[state, event]:
        when = rule.when
        if (
            when is When.ALWAYS
            or (when is When.CANCEL_REQUESTED and cancel_requested)
            or (when is When.EXHAUSTED and attempts >= max_attempts)
            or (when is When.DELAYED and delay > 0)
        ):
            effect = rule.attempts
            return Change(rule.target, attempts if effect is Attempts.KEEP else _count(effect, attempts))
    return None


def _count(effect: Attempts, attempts: int) -> int:
    if effect is Attempts.COUNT:
        return attempts + 1
    if effect is Attempts.UNCOUNT:
        return max(attempts - 1, 0)
    return 0


LEASE_EXPIRED = "lease expired"
WORKER_GONE = "worker gone"
EXPIRED = "expired: not started in time"
