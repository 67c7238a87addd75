"""Due times of recurring jobs: cron expressions in a time zone, and intervals. Reads no clock.

Due times are instants in microseconds since 1970. A cron expression has five fields, or six with seconds
first. An expression with a fixed hour is due once a day, also when the clocks change: a skipped time is due
right after the gap, and a repeated time is due the first time only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct

from dayjob.errors import ConfigError
from dayjob.model.durations import EPOCH, SECOND, to_datetime

_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
_VALUES = ("0-59", "0-59", "0-23", "1-31, L, LW", "1-12, JAN-DEC", "0-7, SUN-SAT, 5L, 1#2")
_ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_CLOCK_CHANGE = 3 * 3600 * SECOND
"""The largest change of any zone's clocks."""
_LAST = (datetime(9999, 12, 30, tzinfo=UTC) - EPOCH) // _MICROSECOND
"""A day before the last time that ``datetime`` has: no zone's local time is beyond its range."""


class Cron:
    """A cron expression in a time zone."""

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        fields = check_cron(expression).split()
        self._zone = find_zone(timezone)
        self._seconds: list[int] | None = None
        self._fixed = not fields[-5].startswith("*") and not fields[-4].startswith("*")
        if len(fields) == 6 and self._fixed:
            # The rules for clock changes work on minutes, so the seconds are added afterwards.
            self._seconds = sorted(CronSim(" ".join(fields), _ANY_TIME).seconds)
            fields = fields[1:]
        self._expression = " ".join(fields)

    def after(self, instant: int) -> int | None:
        """Return the first due time after the instant, or None if there is none."""
        return next((due for due in self._forwards(instant) if due > instant), None)

    def latest(self, instant: int, count: int) -> list[int]:
        """Return the last ``count`` due times up to and including the instant, newest first."""
        found = (due for due in self._backwards(instant) if due <= instant)
        return list(islice(found, count))

    def _forwards(self, instant: int) -> Iterator[int]:
        minute = 0 if self._seconds is None else 60 * SECOND
        with suppress(OverflowError):  # The next one would be after the year 9999.
            for due in CronSim(self._expression, self._local(instant - minute)):
                for second in self._seconds or (0,):
                    yield _to_micros(due) + second * SECOND

    def _backwards(self, instant: int) -> Iterator[int]:
        # Fixed times are local times, and the clocks may have been put back since: start after that.
        later = _MAX_CLOCK_CHANGE if self._fixed else SECOND
        for due in CronSim(self._expression, self._local(instant + later), reverse=True):
            for second in reversed(self._seconds or (0,)):
                yield _to_micros(due) + second * SECOND

    def _local(self, instant: int) -> datetime:
        return to_datetime(min(instant, _LAST)).astimezone(self._zone)


class Every(Struct, frozen=True):
    """An interval, counted from an anchor."""

    _interval: int
    _anchor: int

    def after(self, instant: int) -> int:
        return self._at_or_before(instant) + self._interval

    def latest(self, instant: int, count: int) -> list[int]:
        last = self._at_or_before(instant)
        return [last - number * self._interval for number in range(count)]

    def _at_or_before(self, instant: int) -> int:
        return instant - (instant - self._anchor) % self._interval


Timing = Cron | Every
"""A source of due times."""


@lru_cache(1000)
def cron(expression: str, timezone: str) -> Cron:
    return Cron(expression, timezone)


def check_cron(expression: str) -> str:
    """Return the expression, or that of a short name. Raise with the position of the error if invalid."""
    if not isinstance(expression, str):
        raise ConfigError(
            f"cron={expression!r} is a {type(expression).__name__}: pass text such as '*/5 * * * *'"
        )
    if expression.strip().startswith("@"):
        named = _NAMED.get(expression.strip().lower())
        if named is None:
            raise ConfigError(f"cron={expression!r}: the short names are {', '.join(_NAMED)}")
        return named
    fields = expression.split()
    if len(fields) not in (5, 6):
        raise ConfigError(
            f"cron={expression!r} has {len(fields)} fields: pass minute, hour, day of month, month and "
            "day of week, optionally with seconds first"
        )
    try:
        due = CronSim(expression, _ANY_TIME)
    except (CronSimError, ValueError):
        raise ConfigError(_error_text(expression, fields)) from None
    if next(due, None) is None:
        raise ConfigError(f"cron={expression!r} is never due: there is no such date")
    return expression


def _error_text(expression: str, fields: list[str]) -> str:
    position = 0
    for number, field in enumerate(fields):
        position = expression.index(field, position)
        for part in field.split(","):
            if not _is_valid(part, number, len(fields)):
                known = number + 6 - len(fields)
                return (
                    f"cron={expression!r}: {part!r} at character {position + 1} is not a valid "
                    f"{_FIELDS[known]}: that field takes {_VALUES[known]}, *, ranges a-b, steps */n "
                    "and lists a,b"
                )
            position += len(part) + 1
        position -= 1
    return f"cron={expression!r} is never due: none of those months has such a day"


def _is_valid(part: str, number: int, of: int) -> bool:
    fields = ["*"] * of
    fields[number] = part
    try:
        CronSim(" ".join(fields), _ANY_TIME)
    except (CronSimError, ValueError):
        return False
    return True


def find_zone(name: str) -> ZoneInfo:
    if not isinstance(name, str):
        raise ConfigError(f"timezone={name!r} is a {type(name).__name__}: pass a name")
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ConfigError(
            f"timezone={name!r} is unknown: pass an IANA name such as 'Europe/Berlin' "
            "(where the system has no time zones, install tzdata)"
        ) from None


def _to_micros(due: datetime) -> int:
    return (due.astimezone(UTC) - EPOCH) // _MICROSECOND
