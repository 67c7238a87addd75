"""Recurring jobs at a given time: due times, missed times, and changes of the declaration."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dayjob import App, ConfigError, NewJob, Recurring
from dayjob.model.durations import SECOND, to_datetime
from dayjob.model.recurring import LATE, MAX_MISSED, Missed, Schedule, to_schedule

START = 1_767_225_600 * SECOND  # 2026-01-01 00:00 UTC
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def schedule(now: int = START, **options: Any) -> Schedule:
    if "cron" not in options:
        options.setdefault("every", 60)
    recurring = Recurring("s", task="t", **options)
    return to_schedule(recurring, NewJob("q", b"{}", "t"), None).starting(now)


# The first due time.


def test_an_interval_counts_from_its_declaration() -> None:
    assert schedule(every=60).next_us == START + MINUTE
    assert schedule(every=timedelta(hours=2)).next_us == START + 2 * HOUR
    assert schedule(every=0.1).next_us == START + SECOND // 10


def test_an_expression_is_first_due_at_its_next_time() -> None:
    assert schedule(cron="@hourly").next_us == START + HOUR
    assert schedule(cron="@hourly", now=START - 1).next_us == START


def test_a_schedule_shows_its_interval_and_times() -> None:
    listed = schedule(every=90)
    assert (listed.next_at, listed.last_at, listed.every) == (to_datetime(START + 90 * SECOND), None, 90.0)
    fired = listed.due(START + 90 * SECOND).schedule
    assert fired.last_at == to_datetime(START + 90 * SECOND)
    assert fired.next_at == to_datetime(START + 180 * SECOND)
    assert replace(fired, paused=True).next_at is None
    assert schedule(cron="@daily").every is None


# Firing.


def test_a_schedule_fires_at_its_due_time_and_not_before() -> None:
    stored = schedule()
    early = stored.due(START + MINUTE - 1)
    assert (early.times, early.schedule, early.skipped) == ([], stored, 0)
    due = stored.due(START + MINUTE)
    assert due.times == [START + MINUTE]
    assert (due.schedule.last_us, due.schedule.next_us) == (START + MINUTE, START + 2 * MINUTE)


def test_late_firing_does_not_shift_the_due_times() -> None:
    due = schedule().due(START + MINUTE + 7 * SECOND)
    assert due.times == [START + MINUTE]
    assert due.schedule.next_us == START + 2 * MINUTE


def test_firing_clears_the_problem() -> None:
    assert replace(schedule(), problem="no").due(START + MINUTE).schedule.problem is None


def test_a_paused_or_finished_schedule_does_not_fire() -> None:
    assert replace(schedule(), paused=True).due(START + HOUR).times == []
    assert replace(schedule(), next_us=None).due(START + HOUR).times == []


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_late_due_time_fires_for_every_missed_setting(missed: Missed) -> None:
    """A busy second or a new leader is not a downtime."""
    due = schedule(every=1, missed=missed).due(START + SECOND + LATE)
    assert due.times == [START + number * SECOND for number in range(1, LATE // SECOND + 2)]
    assert due.skipped == 0


@pytest.mark.parametrize(
    ("missed", "fired"), [("skip", []), ("once", [3]), ("all", [1, 2, 3])], ids=["skip", "once", "all"]
)
def test_missed_due_times_fire_by_the_missed_setting_after_a_downtime(
    missed: Missed, fired: list[int]
) -> None:
    now = START + 3 * HOUR + 30 * MINUTE
    due = schedule(every=3600, missed=missed).due(now)
    assert due.times == [START + number * HOUR for number in fired]
    assert due.skipped == 3 - len(fired)
    assert due.schedule.next_us == START + 4 * HOUR
    assert due.schedule.last_us == (START + 3 * HOUR if fired else None)


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_due_times_while_held_up_are_not_missed(missed: Missed) -> None:
    held = replace(schedule(every=3600, missed=missed), held_us=START + HOUR)
    due = held.due(START + 3 * HOUR + 30 * MINUTE)
    assert due.times == [START + number * HOUR for number in (1, 2, 3)]
    assert (due.skipped, due.schedule.held_us) == (0, None)


@pytest.mark.parametrize(("missed", "fired"), [("skip", [3]), ("once", [2, 3]), ("all", [1, 2, 3])])
def test_due_times_before_the_hold_up_fire_by_the_missed_setting(missed: Missed, fired: list[int]) -> None:
    held = replace(schedule(every=3600, missed=missed), held_us=START + 2 * HOUR + 30 * MINUTE)
    assert held.due(START + 3 * HOUR + 30 * MINUTE).times == [START + number * HOUR for number in fired]


def test_a_resumed_or_changed_schedule_is_no_longer_held_up() -> None:
    held = replace(schedule(), held_us=START + MINUTE)
    assert replace(held, paused=True).resumed(START + HOUR).held_us is None
    assert schedule(every=90).replacing(held, START + HOUR).held_us is None
    assert schedule().replacing(held, START + HOUR).held_us == START + MINUTE


def test_skip_fires_the_newest_due_time_if_it_is_only_late() -> None:
    now = START + 3 * HOUR + LATE
    assert schedule(every=3600, missed="skip").due(now).times == [START + 3 * HOUR]
    assert schedule(every=3600, missed="skip").due(now + 1).times == []


@pytest.mark.parametrize("timing", [{"every": 1}, {"cron": "* * * * * *"}], ids=["every", "cron"])
def test_missed_all_is_bounded_and_fires_the_newest(timing: dict[str, Any]) -> None:
    now = START + 1500 * SECOND
    due = schedule(missed="all", **timing).due(now)
    assert due.times == [now - number * SECOND for number in range(MAX_MISSED)][::-1]
    assert due.skipped == 500, "skipped due times are counted"
    assert due.schedule.next_us == now + SECOND


def test_a_very_long_downtime_takes_bounded_time() -> None:
    now = START + 365 * 24 * HOUR
    due = schedule(every=0.1, missed="all").due(now)
    assert len(due.times) == MAX_MISSED
    assert due.skipped >= MAX_MISSED
    once = schedule(every=0.1, missed="once").due(now)
    assert (once.times, once.skipped) == ([now], 2 * MAX_MISSED)


def test_exactly_the_maximum_of_missed_times_all_fire() -> None:
    due = schedule(every=1, missed="all").due(START + MAX_MISSED * SECOND)
    assert (len(due.times), due.skipped) == (MAX_MISSED, 0)


TIMINGS = st.sampled_from([
    {"every": 60}, {"every": 0.7}, {"cron": "*/5 * * * *"}, {"cron": "*/7 * * * * *"},
    {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
    {"cron": "5,40 0,30 1-3 * * *", "timezone": "America/New_York"},
])  # fmt: skip
BEGINNINGS = st.sampled_from([START, 1_774_742_400 * SECOND, 1_792_886_400 * SECOND])
"""An ordinary day, and the days when Berlin's clocks change."""


@settings(deadline=None, max_examples=40)
@given(TIMINGS, BEGINNINGS, st.lists(st.integers(0, 1000 * SECOND), min_size=1, max_size=20))
def test_missed_all_fires_every_due_time_once_however_the_downtime_is_split(
    timing: dict[str, Any], start: int, steps: list[int]
) -> None:
    stored = schedule(now=start, missed="all", **timing)
    expected, due = [], stored.next_us
    end = start + sum(steps)
    while due is not None and due <= end:
        expected.append(due)
        due = stored.timing.after(due)
    fired, now = [], start
    for wait in steps:
        now += wait
        step = stored.due(now)
        fired += step.times
        stored = step.schedule
        assert step.skipped <= max(0, len(step.times) + step.skipped - MAX_MISSED)
    if len(expected) <= MAX_MISSED:
        assert fired == expected
    assert fired == sorted(set(fired))
    assert stored.next_us == due


@settings(deadline=None, max_examples=40)
@given(
    TIMINGS,
    BEGINNINGS,
    st.sampled_from(["skip", "once", "all"]),
    st.lists(st.integers(0, 10**11), max_size=8),
)
def test_no_due_time_fires_twice(
    timing: dict[str, Any], start: int, missed: Missed, steps: list[int]
) -> None:
    stored, now = schedule(now=start, missed=missed, **timing), start
    fired = []
    for wait in steps:
        now += wait
        step = stored.due(now)
        fired += step.times
        stored = step.schedule
        assert stored.next_us is not None
        assert stored.next_us > now
        assert all(time <= now for time in step.times)
        if missed == "once" and step.skipped:
            assert len(step.times) == 1
    assert fired == sorted(set(fired))
    assert stored.last_us == (fired[-1] if fired else None)


# Changes of the declaration.


def test_declaring_the_same_schedule_again_changes_nothing() -> None:
    stored = replace(schedule().due(START + MINUTE).schedule, paused=True, problem="no")
    assert schedule().replacing(stored, START + 90 * SECOND) == stored


def test_a_changed_expression_applies_at_once_and_the_last_fire_time_stays() -> None:
    stored = schedule(cron="@daily").due(START + 24 * HOUR).schedule
    now = START + 25 * HOUR + MINUTE
    changed = schedule(cron="@hourly").replacing(stored, now)
    assert (changed.last_us, changed.next_us) == (START + 24 * HOUR, START + 26 * HOUR)


def test_a_changed_time_zone_changes_the_next_due_time() -> None:
    stored = schedule(cron="0 9 * * *")
    assert (
        schedule(cron="0 9 * * *", timezone="Asia/Tokyo").replacing(stored, START).next_us
        == START + 24 * HOUR
    )


def test_a_shorter_interval_counts_from_the_last_fire_time() -> None:
    stored = schedule(every=3600).due(START + HOUR).schedule
    now = START + HOUR + 10 * MINUTE
    assert schedule(every=900).replacing(stored, now).next_us == START + HOUR + 15 * MINUTE
    assert schedule(every=60).replacing(stored, now).next_us == now, "overdue by the new one: at once"


def test_other_changes_keep_the_next_due_time() -> None:
    stored = schedule()
    later = START + 30 * SECOND
    for change in ({"missed": "all"}, {"priority": 5}, {"queue": "other"}):
        fresh = schedule(now=later, **change)
        assert fresh.replacing(stored, later).next_us == START + MINUTE
        assert fresh.replacing(stored, later).missed == fresh.missed


def test_a_changed_schedule_stays_paused() -> None:
    stored = replace(schedule(), paused=True)
    assert schedule(every=5).replacing(stored, START).paused


def test_due_times_of_a_pause_do_not_fire_after_it() -> None:
    stored = replace(schedule(missed="all"), paused=True)
    resumed = stored.resumed(START + 10 * MINUTE + SECOND)
    assert (resumed.paused, resumed.next_us) == (False, START + 11 * MINUTE)
    assert stored.resumed(START + 30 * SECOND).next_us == START + MINUTE
    daily = replace(schedule(cron="@daily"), paused=True)
    assert daily.resumed(START + 50 * HOUR).next_us == START + 72 * HOUR


# The job.


def test_the_headers_of_the_job_have_the_schedule_and_the_due_time() -> None:
    job = replace(schedule(), headers={"a": "b"}, tenant="acme", priority=7, max_attempts=9).new_job(START)
    assert (job.queue, job.task, job.payload) == ("q", "t", b"{}")
    assert (job.tenant, job.priority, job.max_attempts) == ("acme", 7, 9)
    assert job.headers == {
        "a": "b", "dayjob-schedule": "s", "dayjob-due": "2026-01-01T00:00:00+00:00"
    }  # fmt: skip
    assert schedule().new_job(None).headers == {"dayjob-schedule": "s", "dayjob-attempts": "task"}


# Refused declarations.


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "pass one of the two"),
        ({"cron": "@daily", "every": 5}, "pass one of the two"),
        ({"cron": "61 * * * *"}, "'61' at character 1 is not a valid minute"),
        ({"every": 0}, "too often"),
        ({"every": 0.09}, "too often"),
        ({"every": -5}, "is negative"),
        ({"every": float("nan")}, "not finite"),
        ({"every": "5"}, "pass a number of seconds or a timedelta"),
        ({"every": True}, "pass a number of seconds or a timedelta"),
        ({"every": 5, "timezone": "Europe/Berlin"}, "has no effect"),
        ({"cron": "@daily", "timezone": "Mars/Base"}, "is unknown"),
        ({"cron": "@daily", "timezone": ["UTC"]}, "pass a name"),
        ({"cron": "@daily", "missed": "sometimes"}, "pass 'skip', 'once' or 'all'"),
        ({"every": 5, "task": "t", "payload": b"x"}, "payload is for jobs without a task"),
        ({"every": 5, "task": "t", "args": (1,)}, "pass a mapping by parameter, or the task itself"),
        ({"every": 5, "args": 7}, "args=7"),
        ({"every": 5, "task": print}, "pass a task, or the name of one"),
        ({"every": 5, "task": None}, "pass a task, or the name of one"),
    ],
)
def test_an_invalid_recurring_is_refused_when_it_is_built(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recurring("nightly", **options)
    assert fault in str(caught.value)
    assert "Recurring('nightly')" in str(caught.value)


@pytest.mark.parametrize("id", ["", "a\0b", "\ud800", "x" * 1025, 5, None, b"x"])
def test_an_invalid_id_is_refused(id: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="schedule id"):
        Recurring(id, every=5)


def test_a_recurring_task_is_checked_when_it_is_registered() -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match=r"task 'bad'.*'99' at character 1"):
        app.task(name="bad", cron="99 * * * *")(lambda: None)
    with pytest.raises(ConfigError, match="give who a default"):

        @app.task(name="greet", every=5)
        def greet(who: str) -> None: ...

    @app.task(name="tick", every=5, missed="skip")
    def tick(who: str = "you") -> None: ...

    @app.task(name="plain")
    def plain() -> None: ...

    [recurring] = app.recurring()
    assert (recurring.id, recurring.every, recurring.missed) == ("tick", 5, "skip")
