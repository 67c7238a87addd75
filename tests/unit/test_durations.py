"""Durations and instants are exact to the microsecond, and invalid ones are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayjob.model.durations import LONGEST, SECOND, to_datetime, to_datetime_or_none, to_instant, to_micros

micros = st.integers(0, LONGEST)
offsets = st.timedeltas(timedelta(hours=-24, microseconds=1), timedelta(hours=24, microseconds=-1))
moments = st.datetimes(datetime.min + timedelta(days=1), datetime.max - timedelta(days=1))


class Undecided(tzinfo):
    """A time zone without an offset, which makes a datetime naive."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str:
        return "undecided"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (-0.0, 0),
        (1, SECOND),
        (0.1 + 0.2, 300_000),
        (0.000_001, 1),
        (0.000_000_4, 0),
        (1.000_000_6, SECOND + 1),
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(days=1, seconds=1, microseconds=1), 86_401 * SECOND + 1),
        (timedelta(days=36_500), LONGEST),
        (LONGEST // SECOND, LONGEST),
    ],
    ids=repr,
)
def test_a_duration_becomes_whole_microseconds(value: float | timedelta, expected: int) -> None:
    found = to_micros(value, "delay")
    assert found == expected
    assert type(found) is int


@given(micros)
def test_a_timedelta_and_its_seconds_are_the_same_duration_to_the_microsecond(value: int) -> None:
    assert to_micros(timedelta(microseconds=value), "delay") == value
    assert to_micros(value / SECOND, "delay") == value


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (-1, ValueError, "negative"),
        (-0.000_001, ValueError, "negative"),
        (-1e-9, ValueError, "negative"),
        (timedelta(microseconds=-1), ValueError, "negative"),
        (timedelta.min, ValueError, "negative"),
        (float("nan"), ValueError, "finite"),
        (float("inf"), ValueError, "finite"),
        (-float("inf"), ValueError, "finite"),
        (LONGEST // SECOND + 1, ValueError, "too long"),
        (timedelta(days=36_500, microseconds=1), ValueError, "too long"),
        (timedelta.max, ValueError, "too long"),
        (1e308, ValueError, "too long"),
        (10**400, ValueError, "too long"),
        (True, TypeError, "bool"),
        (False, TypeError, "bool"),
        ("30", TypeError, "str"),
        (b"30", TypeError, "bytes"),
        (None, TypeError, "NoneType"),
        (1j, TypeError, "complex"),
        (datetime(2026, 1, 1, tzinfo=UTC), TypeError, "datetime"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_invalid_duration_is_refused_with_its_name_and_value(
    value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as refusal:
        to_micros(value, "delay")
    assert f"delay={value!r}" in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600 * SECOND),
        (datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 1_767_225_600 * SECOND),
        (datetime(2025, 12, 31, 16, tzinfo=timezone(timedelta(hours=-8))), 1_767_225_600 * SECOND),
    ],
    ids=str,
)
def test_an_aware_datetime_becomes_microseconds_since_1970(value: datetime, expected: int) -> None:
    assert to_instant(value, "run_at") == expected


@given(moments, offsets)
def test_an_instant_converts_back_to_its_datetime_in_utc(moment: datetime, offset: timedelta) -> None:
    aware = moment.replace(tzinfo=timezone(offset))
    back = to_datetime(to_instant(aware, "run_at"))
    assert back == aware
    assert back.tzinfo is UTC


@given(st.integers(-62_135_596_800 * SECOND, 253_402_300_799 * SECOND + 999_999))
def test_microseconds_survive_a_round_trip(instant: int) -> None:
    assert to_instant(to_datetime(instant), "run_at") == instant
    assert to_datetime_or_none(instant) == to_datetime(instant)


def test_none_converts_to_none() -> None:
    assert to_datetime_or_none(None) is None


@pytest.mark.parametrize("value", [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=Undecided())], ids=str)
def test_a_naive_datetime_is_refused_with_its_name(value: datetime) -> None:
    with pytest.raises(ValueError, match=r"run_at=.* no time zone"):
        to_instant(value, "run_at")


@pytest.mark.parametrize(
    "value", [date(2026, 1, 1), 1_767_225_600, "2026-01-01T00:00:00Z", timedelta(1), None]
)
def test_a_value_that_is_not_a_datetime_is_refused_with_its_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"run_at=.* pass an aware datetime"):
        to_instant(value, "run_at")


@pytest.mark.parametrize(
    "value",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
    ids=str,
)
def test_a_datetime_out_of_the_range_of_utc_is_refused(value: datetime) -> None:
    with pytest.raises(ValueError, match="run_at="):
        to_instant(value, "run_at")
