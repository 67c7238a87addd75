"""Every state, transition and condition, compared with a second copy of the lifecycle table."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest

from dayjob.model.job import JobState
from dayjob.model.lifecycle import SETTLEMENTS, Change, Transition, next_state

S, E = JobState, Transition


class Situation(NamedTuple):
    attempts: int
    max_attempts: int
    cancel_requested: bool
    delay: int
    suspect: bool


SITUATIONS = [
    Situation(attempts, max_attempts, cancel_requested, delay, suspect)
    for (attempts, max_attempts), cancel_requested, delay, suspect in product(
        [(0, 3), (1, 3), (2, 3), (3, 3), (4, 3), (1, 1), (2**31 - 2, 2**31 - 1), (2**31 - 1, 2**31 - 1)],
        [False, True],
        [0, 1, 10**15],
        [False, True],
    )
]


def by_the_design(state: JobState, event: Transition, situation: Situation) -> Change | None:
    attempts, max_attempts, cancel_requested, delay, suspect = situation
    attempts_left = attempts < max_attempts
    uncounted = max(attempts - 1, 0)
    match state, event:
        case S.SCHEDULED, E.DUE:
            return Change(S.PENDING, attempts)
        case S.PENDING, E.CLAIM:
            return Change(S.RUNNING, attempts + 1)
        case S.PENDING, E.LIMIT:
            return Change(S.LIMITED, attempts)
        case S.LIMITED, E.ROOM:
            return Change(S.PENDING, attempts)
        case S.RUNNING, E.ACK:
            return Change(S.DONE, attempts)
        case S.RUNNING, E.NACK | E.SNOOZE if cancel_requested:
            return Change(S.CANCELLED, attempts)
        case S.RUNNING, E.NACK if attempts_left:
            return Change(S.SCHEDULED if delay > 0 else S.PENDING, attempts)
        case S.RUNNING, E.NACK:
            return Change(S.DEAD, attempts)
        case S.RUNNING, E.DEAD_LETTER:
            return Change(S.DEAD, attempts)
        case S.RUNNING, E.RELEASE:
            return Change(S.PENDING, uncounted)
        case S.RUNNING, E.SNOOZE:
            return Change(S.SCHEDULED, uncounted)
        case S.RUNNING, E.MARK_CANCELLED:
            return Change(S.CANCELLED, attempts)
        case S.RUNNING, E.LEASE_EXPIRED if attempts_left:
            return Change(S.PENDING, attempts)
        case S.RUNNING, E.LEASE_EXPIRED if not suspect and max_attempts > 1:
            return Change(S.PENDING, uncounted)
        case S.RUNNING, E.LEASE_EXPIRED:
            return Change(S.DEAD, attempts)
        case S.PENDING | S.SCHEDULED | S.LIMITED, E.CANCEL | E.EXPIRE:
            return Change(S.CANCELLED, attempts)
        case S.DEAD, E.REQUEUE:
            return Change(S.PENDING, 0)
        case _:
            return None


def outcomes(state: JobState, event: Transition) -> set[JobState | None]:
    changes = (next_state(state, event, **situation._asdict()) for situation in SITUATIONS)
    return {None if change is None else change.state for change in changes}


@pytest.mark.parametrize("event", Transition)
@pytest.mark.parametrize("state", JobState)
def test_a_transition_has_the_effect_of_the_lifecycle_table(state: JobState, event: Transition) -> None:
    for situation in SITUATIONS:
        found = next_state(state, event, **situation._asdict())
        assert found == by_the_design(state, event, situation), situation


@pytest.mark.parametrize("event", sorted(SETTLEMENTS))
def test_only_a_running_job_is_settled(event: Transition) -> None:
    assert {state for state in JobState if outcomes(state, event) != {None}} == {S.RUNNING}


def test_the_settlements_are_the_six_ends_of_a_claim() -> None:
    assert {str(event) for event in SETTLEMENTS} == {
        "ack", "nack", "dead_letter", "release", "snooze", "mark_cancelled"
    }  # fmt: skip


def test_only_the_requeue_of_a_dead_job_changes_a_finished_job() -> None:
    moves = {
        (state, event) for state, event in product(JobState, Transition) if outcomes(state, event) != {None}
    }
    assert {(state, event) for state, event in moves if state.finished} == {(S.DEAD, E.REQUEUE)}


def test_without_a_cancel_request_or_a_delay_given_a_nack_retries_at_once() -> None:
    assert next_state(S.RUNNING, E.NACK, attempts=1, max_attempts=3) == Change(S.PENDING, 1)


def test_a_job_that_keeps_losing_its_lease_ends_dead() -> None:
    state, attempts, runs = S.PENDING, 0, 0
    while state is S.PENDING:
        for event in (E.CLAIM, E.LEASE_EXPIRED):
            change = next_state(state, event, attempts=attempts, max_attempts=3, suspect=runs > 0)
            assert change is not None
            state, attempts = change.state, change.attempts
        runs += 1
    assert (state, runs) == (S.DEAD, 3)
