"""Due times of cron expressions and intervals: fields, names, zones, and clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dayjob import ConfigError
from dayjob.model.cron import Cron, Every, Timing, check_cron, find_zone
from dayjob.model.durations import SECOND, to_datetime, to_instant

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    return to_instant(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold), "at")


def following(timing: Timing, instant: int, count: int) -> list[int]:
    times: list[int] = []
    for _ in range(count):
        due = timing.after(times[-1] if times else instant)
        assert due is not None
        times.append(due)
    return times


def shown(times: list[int]) -> list[str]:
    return [f"{to_datetime(time):%m-%d %H:%M:%S}" for time in times]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/20 * * * *", ["01-01 00:20:00", "01-01 00:40:00", "01-01 01:00:00"]),
        ("5 4 * * *", ["01-01 04:05:00", "01-02 04:05:00"]),
        ("0 9-11 * * *", ["01-01 09:00:00", "01-01 10:00:00", "01-01 11:00:00", "01-02 09:00:00"]),
        ("0 1,13 * * *", ["01-01 01:00:00", "01-01 13:00:00", "01-02 01:00:00"]),
        ("0 0 * * mon", ["01-05 00:00:00", "01-12 00:00:00"]),
        ("0 0 * * 6-7", ["01-03 00:00:00", "01-04 00:00:00", "01-10 00:00:00"]),
        ("0 0 1 feb,Apr *", ["02-01 00:00:00", "04-01 00:00:00"]),
        ("0 0 L * *", ["01-31 00:00:00", "02-28 00:00:00"]),
        ("0 0 * * 1#2", ["01-12 00:00:00", "02-09 00:00:00"]),
        ("0 0 * * 5L", ["01-30 00:00:00", "02-27 00:00:00"]),
        ("30 */10 * * * *", ["01-01 00:00:30", "01-01 00:10:30"]),
        ("*/20 * * * * *", ["01-01 00:00:20", "01-01 00:00:40", "01-01 00:01:00"]),
        ("10,50 5 4 * * *", ["01-01 04:05:10", "01-01 04:05:50", "01-02 04:05:10"]),
        ("@hourly", ["01-01 01:00:00", "01-01 02:00:00"]),
        ("@daily", ["01-02 00:00:00", "01-03 00:00:00"]),
        ("@midnight", ["01-02 00:00:00"]),
        (" @Weekly ", ["01-04 00:00:00", "01-11 00:00:00"]),
        ("@monthly", ["02-01 00:00:00", "03-01 00:00:00"]),
        ("@yearly", ["01-01 00:00:00"]),
        ("@annually", ["01-01 00:00:00"]),
        ("  0   12 * *  * ", ["01-01 12:00:00"]),
    ],
)
def test_an_expression_has_its_due_times(expression: str, expected: list[str]) -> None:
    assert shown(following(Cron(expression), at("2026-01-01"), len(expected))) == expected


def test_due_times_continue_into_the_next_year() -> None:
    assert Cron("@yearly").after(at("2026-01-01")) == at("2027-01-01")
    assert Cron("0 0 29 2 *").after(at("2026-01-01")) == at("2028-02-29")


def test_a_due_time_is_after_the_instant_and_not_at_it() -> None:
    timing = Cron("0 12 * * *")
    noon = at("2026-01-01T12:00")
    assert timing.after(noon - 1) == noon
    assert timing.after(noon) == noon + 24 * 3600 * SECOND
    assert timing.latest(noon, 1) == [noon]
    assert timing.latest(noon - 1, 1) == [noon - 24 * 3600 * SECOND]


def test_due_times_follow_the_local_time_of_the_zone() -> None:
    assert Cron("0 9 * * *", BERLIN).after(at("2026-01-01")) == at("2026-01-01T08:00")
    assert Cron("0 9 * * *", BERLIN).after(at("2026-07-01")) == at("2026-07-01T07:00")
    assert Cron("0 9 * * *", "Asia/Kolkata").after(at("2026-01-01")) == at("2026-01-01T03:30")


# The clocks change: Berlin on 29 March (02:00 to 03:00) and 25 October 2026 (03:00 to 02:00), New York on
# 8 March and 1 November (both at 02:00).

SPRING = [(BERLIN, "2026-03-29", "01:00"), (NEW_YORK, "2026-03-08", "07:00")]
AUTUMN = [(BERLIN, "2026-10-25", "00:30", "2"), (NEW_YORK, "2026-11-01", "05:30", "1")]
FIXED = [("30 {hour} * * *", [0]), ("0 30 {hour} * * *", [0]), ("5,40 30 {hour} * * *", [5, 40])]


@pytest.mark.parametrize(("expression", "seconds"), FIXED)
@pytest.mark.parametrize(("zone", "day", "after_gap"), SPRING)
def test_a_skipped_fixed_time_is_due_right_after_the_gap(
    zone: str, day: str, after_gap: str, expression: str, seconds: list[int]
) -> None:
    timing = Cron(expression.format(hour=2), zone)
    due = [at(f"{day}T{after_gap}") + second * SECOND for second in seconds]
    assert following(timing, at(f"{day}T00:00", zone), len(due)) == due
    for earlier, later in pairwise([*due, *following(timing, due[-1], 3)]):
        assert earlier < later
    tomorrow = to_datetime(following(timing, due[-1], 1)[0]).astimezone(ZoneInfo(zone))
    assert (tomorrow.hour, tomorrow.minute, tomorrow.second) == (2, 30, seconds[0])
    assert tomorrow.date() == datetime.fromisoformat(day).date() + timedelta(days=1)
    assert timing.latest(at(f"{day}T12:00", zone), len(due)) == due[::-1]


@pytest.mark.parametrize(("expression", "seconds"), FIXED)
@pytest.mark.parametrize(("zone", "day", "first", "hour"), AUTUMN)
def test_a_repeated_fixed_time_is_due_the_first_time_only(
    zone: str, day: str, first: str, hour: str, expression: str, seconds: list[int]
) -> None:
    timing = Cron(expression.format(hour=hour), zone)
    due = [at(f"{day}T{first}") + second * SECOND for second in seconds]
    assert following(timing, at(f"{day}T00:00", zone), len(due)) == due
    tomorrow = to_datetime(following(timing, due[-1], 1)[0]).astimezone(ZoneInfo(zone))
    assert tomorrow.date() == datetime.fromisoformat(day).date() + timedelta(days=1)


@pytest.mark.parametrize(("expression", "seconds"), FIXED)
@pytest.mark.parametrize(("zone", "day", "first", "hour"), AUTUMN)
def test_in_the_repeated_hour_a_fixed_time_is_not_due_again(
    zone: str, day: str, first: str, hour: str, expression: str, seconds: list[int]
) -> None:
    timing = Cron(expression.format(hour=hour), zone)
    due = [at(f"{day}T{first}") + second * SECOND for second in seconds]
    again = at(f"{day}T0{hour}:10", zone, fold=1)
    assert again > due[-1]
    assert timing.latest(again, len(due)) == due[::-1]
    assert timing.after(again) == timing.after(due[-1])


@pytest.mark.parametrize("expression", ["30 * * * *", "0 30 * * * *"])
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-03-08", "2026-10-25", "2026-11-01"])
def test_an_hourly_job_is_due_every_hour_through_clock_changes(zone: str, day: str, expression: str) -> None:
    times = following(Cron(expression, zone), at(f"{day}T00:00", zone), 30)
    assert {later - earlier for earlier, later in pairwise(times)} == {3600 * SECOND}


def test_two_fixed_times_in_the_gap_are_due_once_after_it() -> None:
    timing = Cron("0,30 2 * * *", BERLIN)
    first, second = following(timing, at("2026-03-29T00:00", BERLIN), 2)
    assert first == at("2026-03-29T01:00")
    assert second == at("2026-03-30T02:00", BERLIN)


def test_a_time_of_a_skipped_day_is_due_after_the_gap() -> None:
    """Samoa had no 30 December 2011."""
    times = following(Cron("30 2 * * *", "Pacific/Apia"), at("2011-12-29T12:00", "Pacific/Apia"), 2)
    assert times == [
        at("2011-12-31T00:00", "Pacific/Apia"),
        at("2011-12-31T02:30", "Pacific/Apia"),
    ]


# Refused expressions.


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("60 * * * *", "'60' at character 1 is not a valid minute: that field takes 0-59"),
        ("0 25 * * *", "'25' at character 3 is not a valid hour: that field takes 0-23"),
        ("* * 0 * *", "'0' at character 5 is not a valid day of month"),
        ("0 0 1,2,32 * *", "'32' at character 9 is not a valid day of month"),
        ("0 0  1  13 *", "'13' at character 9 is not a valid month"),
        ("* * * foo *", "'foo' at character 7 is not a valid month: that field takes 1-12, JAN-DEC"),
        ("* * * * 8", "'8' at character 9 is not a valid day of week"),
        ("* * * * MON#6", "'MON#6' at character 9 is not a valid day of week"),
        ("0 0 * * SAT-SUN", "'SAT-SUN' at character 9 is not a valid day of week"),
        ("99 * * * * *", "'99' at character 1 is not a valid second"),
        ("0 0 0 * * XYZ", "'XYZ' at character 11 is not a valid day of week"),
        ("*/0 * * * *", "'*/0' at character 1 is not a valid minute"),
        ("1,,2 * * * *", "'' at character 3 is not a valid minute"),
        ("5 5-1 * * *", "'5-1' at character 3 is not a valid hour"),
        ("* * * * \N{SUPERSCRIPT TWO}L", "at character 9 is not a valid day of week"),
        (f"1 {'9' * 5000} * * *", "at character 3 is not a valid hour"),
    ],
)
def test_an_invalid_expression_is_refused_with_the_position_of_the_error(expression: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_cron(expression)
    assert fault in str(caught.value)


@pytest.mark.parametrize("expression", ["", "   ", "* * * *", "* * * * * * *", "every day"])
def test_a_wrong_number_of_fields_is_reported(expression: str) -> None:
    with pytest.raises(ConfigError, match=rf"has {len(expression.split())} fields"):
        check_cron(expression)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 0 30 feb *", "0 0 30 2 */7"])
def test_an_expression_that_is_never_due_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError, match="is never due"):
        check_cron(expression)


def test_an_unknown_short_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"the short names are @yearly, .*@hourly"):
        check_cron("@reboot")


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *", ["*"] * 5])
def test_an_expression_that_is_not_a_str_is_refused(expression: object) -> None:
    with pytest.raises(ConfigError, match="pass text such as"):
        check_cron(expression)  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
@pytest.mark.parametrize("expression", ["@daily", "30 0 12 * * *", "* * * * *", "0 0 1 1 *"])
def test_nothing_is_due_after_the_year_9999(expression: str, zone: str) -> None:
    timing, last = Cron(expression, zone), at("9999-12-31T23:59:59")
    assert timing.after(last) is None
    assert all(time <= last for time in timing.latest(last, 2))


@pytest.mark.parametrize("zone", ["Mars/Base", "", "Europe", "../etc/passwd", "a\0b", "\ud800", "/etc"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match="is unknown"):
        find_zone(zone)


@pytest.mark.parametrize("zone", [5, ["UTC"], None, UTC])
def test_a_zone_that_is_not_a_str_is_refused(zone: object) -> None:
    with pytest.raises(ConfigError, match="pass a name"):
        find_zone(zone)  # type: ignore[arg-type]


# Properties.

FIELDS = [
    st.sampled_from(["0", "30", "*/15", "5,50", "10-20", "*"]),
    st.sampled_from(["0", "2", "1-3", "*/6", "*", "1,23"]),
    st.sampled_from(["*", "1", "29", "L", "*/10", "28-31"]),
    st.sampled_from(["*", "3", "2", "mar,oct,NOV"]),
    st.sampled_from(["*", "SUN", "1-5", "0#1", "5L"]),
]
EXPRESSIONS = st.tuples(*FIELDS).map(" ".join) | st.tuples(
    st.sampled_from(["0", "*/20", "7,59"]), *FIELDS
).map(" ".join)
ZONES = st.sampled_from(["UTC", BERLIN, NEW_YORK, "Asia/Kolkata", "Australia/Sydney"])
DAYS = st.sampled_from(["2026-03-29", "2026-03-08", "2026-10-25", "2026-11-01", "2026-01-01"])
INSTANTS = st.builds(
    lambda day, offset: at(day) + offset, DAYS, st.integers(-36 * 3600 * SECOND, 36 * 3600 * SECOND)
)


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    if draw(st.booleans()):
        return Every(draw(st.integers(SECOND // 10, 10**12)), draw(INSTANTS))
    expression = draw(EXPRESSIONS)
    try:
        check_cron(expression)
    except ConfigError:
        assume(False)
    return Cron(expression, draw(ZONES))


@settings(deadline=None)
@given(timings(), INSTANTS)
def test_due_times_increase(timing: Timing, instant: int) -> None:
    times = [instant, *following(timing, instant, 5)]
    assert all(earlier < later for earlier, later in pairwise(times))


@settings(deadline=None)
@given(timings(), INSTANTS, st.integers(0, 10**10))
def test_nothing_is_due_between_an_instant_and_the_next_due_time(
    timing: Timing, instant: int, further: int
) -> None:
    due = timing.after(instant)
    assert due is not None
    between = min(instant + further, due - 1)
    assert timing.after(between) == due
    assert all(time <= instant for time in timing.latest(between, 1))


@settings(deadline=None)
@given(timings(), INSTANTS)
def test_latest_agrees_with_after(timing: Timing, instant: int) -> None:
    times = following(timing, instant, 6)
    for number in range(1, len(times) + 1):
        assert timing.latest(times[number - 1], number) == times[:number][::-1]
    assert timing.latest(times[-1] - 1, 5) == times[:5][::-1]
