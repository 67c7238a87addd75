"""The lifecycle of a job: one table of states and transitions.

Every engine applies exactly these rules. Engines in Python call ``next_state``; the conformance and
model-based tests compare the rules in SQL and Lua with it. The first rule with matching state, transition
and condition applies.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct

from dayjob.model.job import JobState


class Transition(StrEnum):
    """A change of a job's state."""

    CLAIM = "claim"
    LIMIT = "limit"
    ROOM = "room"
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


ACK, NACK = Transition.ACK, Transition.NACK
"""Globals for code that each job passes, as ``dayjob.model.job.RUNNING``."""

SETTLEMENTS = frozenset(
    {
        Transition.ACK,
        Transition.NACK,
        Transition.DEAD_LETTER,
        Transition.RELEASE,
        Transition.SNOOZE,
        Transition.MARK_CANCELLED,
    }
)
"""The transitions by which the holder of a claim ends it."""


class When(Enum):
    """The condition of a rule."""

    ALWAYS = "always"
    CANCEL_REQUESTED = "a cancel is requested"
    REPRIEVED = "no attempts are left, but it was not suspect and may run more than once"
    EXHAUSTED = "no attempts are left"
    DELAYED = "the delay is above zero"


class Attempts(Enum):
    """The effect of a rule on ``Job.attempts``."""

    KEEP = "keep"
    COUNT = "one more"
    UNCOUNT = "one less: the run does not count"
    RESET = "back to zero"


class Rule(Struct, frozen=True):
    source: JobState
    transition: Transition
    when: When
    target: JobState
    attempts: Attempts = Attempts.KEEP


_S, _T, _W, _A = JobState, Transition, When, Attempts

RULES: tuple[Rule, ...] = (
    Rule(_S.SCHEDULED, _T.DUE, _W.ALWAYS, _S.PENDING),
    Rule(_S.PENDING, _T.CLAIM, _W.ALWAYS, _S.RUNNING, _A.COUNT),
    Rule(_S.PENDING, _T.LIMIT, _W.ALWAYS, _S.LIMITED),
    Rule(_S.LIMITED, _T.ROOM, _W.ALWAYS, _S.PENDING),
    Rule(_S.RUNNING, _T.ACK, _W.ALWAYS, _S.DONE),
    Rule(_S.RUNNING, _T.NACK, _W.CANCEL_REQUESTED, _S.CANCELLED),
    Rule(_S.RUNNING, _T.NACK, _W.EXHAUSTED, _S.DEAD),
    Rule(_S.RUNNING, _T.NACK, _W.DELAYED, _S.SCHEDULED),
    Rule(_S.RUNNING, _T.NACK, _W.ALWAYS, _S.PENDING),
    Rule(_S.RUNNING, _T.DEAD_LETTER, _W.ALWAYS, _S.DEAD),
    Rule(_S.RUNNING, _T.RELEASE, _W.ALWAYS, _S.PENDING, _A.UNCOUNT),
    Rule(_S.RUNNING, _T.SNOOZE, _W.CANCEL_REQUESTED, _S.CANCELLED),
    Rule(_S.RUNNING, _T.SNOOZE, _W.ALWAYS, _S.SCHEDULED, _A.UNCOUNT),
    Rule(_S.RUNNING, _T.MARK_CANCELLED, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.RUNNING, _T.LEASE_EXPIRED, _W.REPRIEVED, _S.PENDING, _A.UNCOUNT),
    Rule(_S.RUNNING, _T.LEASE_EXPIRED, _W.EXHAUSTED, _S.DEAD),
    Rule(_S.RUNNING, _T.LEASE_EXPIRED, _W.ALWAYS, _S.PENDING),
    Rule(_S.PENDING, _T.CANCEL, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.LIMITED, _T.CANCEL, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.SCHEDULED, _T.CANCEL, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.PENDING, _T.EXPIRE, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.LIMITED, _T.EXPIRE, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.SCHEDULED, _T.EXPIRE, _W.ALWAYS, _S.CANCELLED),
    Rule(_S.DEAD, _T.REQUEUE, _W.ALWAYS, _S.PENDING, _A.RESET),
)

_BY_TRANSITION: dict[tuple[JobState, Transition], tuple[Rule, ...]] = {
    (state, transition): tuple(
        rule for rule in RULES if rule.source is state and rule.transition is transition
    )
    for state in JobState
    for transition in Transition
}


UNCONDITIONAL = {
    pair: rules[0] for pair, rules in _BY_TRANSITION.items() if rules and rules[0].when is When.ALWAYS
}
"""The rules of the transitions that always have the same result in a state."""


class Change(Struct, frozen=True, gc=False):
    """The result of a transition: the new state and the new number of attempts."""

    state: JobState
    attempts: int


def next_state(
    state: JobState,
    transition: Transition,
    *,
    attempts: int,
    max_attempts: int,
    cancel_requested: bool = False,
    delay: int = 0,
    suspect: bool = False,
) -> Change | None:
    """Return the result of the transition, or None if it is not possible in that state."""
    for rule in _BY_TRANSITION[state, transition]:
        when = rule.when
        if (
            when is When.ALWAYS
            or (when is When.CANCEL_REQUESTED and cancel_requested)
            or (when is When.REPRIEVED and attempts >= max_attempts > 1 and not suspect)
            or (when is When.EXHAUSTED and attempts >= max_attempts)
            or (when is When.DELAYED and delay > 0)
        ):
            return Change(rule.target, counted(rule.attempts, attempts))
    return None


def counted(effect: Attempts, attempts: int) -> int:
    """Return the number of attempts after a transition with this effect."""
    if effect is Attempts.KEEP:
        return attempts
    if effect is Attempts.COUNT:
        return attempts + 1
    if effect is Attempts.UNCOUNT:
        return max(attempts - 1, 0)
    return 0


EXPIRED = "expired: not started in time"
CANCELLED = "cancelled before it started"
REQUEUED = "requeued"
