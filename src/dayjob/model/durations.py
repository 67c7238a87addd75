"""Durations and instants: conversion between the types of the public API and the stored integers.

A duration is stored as microseconds, an instant as microseconds since 1970 in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import isfinite

_ACCEPTED = "pass a number of seconds or a timedelta"

Duration = float | timedelta

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST = 36_500 * 86_400 * SECOND
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND


def to_micros(value: Duration, name: str) -> int:
    """Return the duration in microseconds. Errors contain ``name``, the argument or field."""
    if isinstance(value, timedelta):
        micros = value // _MICROSECOND
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{name}={value!r} is not finite: {_ACCEPTED}")
        micros = -1 if value < 0 else round(min(value, LONGEST) * SECOND)
    else:
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: {_ACCEPTED}")
    if micros < 0:
        raise ValueError(f"{name}={value!r} is negative: pass 0 or more seconds")
    if micros > LONGEST:
        raise ValueError(f"{name}={value!r} is too long: pass at most 36,500 days")
    return micros


def to_seconds_or_none(value: Duration | None, name: str) -> float | None:
    return None if value is None else to_micros(value, name) / SECOND


def to_instant(value: datetime, name: str) -> int:
    """Return the aware datetime in microseconds since 1970."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: pass an aware datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(
            f"{name}={value!r} has no time zone: pass an aware datetime, such as datetime.now(UTC)"
        )
    micros = (value - EPOCH) // _MICROSECOND
    if not _FIRST <= micros <= _LAST:
        raise ValueError(f"{name}={value!r} is outside the years 1 to 9999 in UTC")
    return micros


def to_datetime(micros: int) -> datetime:
    """Return the instant as an aware UTC datetime; the first or the last one for a time beyond them."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:  # Of a damaged record.
        return (datetime.max if micros > 0 else datetime.min).replace(tzinfo=UTC)


def to_datetime_or_none(micros: int | None) -> datetime | None:
    return None if micros is None else to_datetime(micros)
