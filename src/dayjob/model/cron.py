"""When a recurring job is due: cron expressions in a time zone, and plain intervals. Reads no clock.

Due times are instants in microseconds since 1970. A cron expression has five fields, or six with seconds
first. One with a fixed hour is due once a day on the days that the clocks change as well: a time that is
skipped is made up for right after the gap, and one that comes twice counts the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

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
_TAKES = ("0-59", "0-59", "0-23", "1-31, L, LW", "1-12, JAN-DEC", "0-7, SUN-SAT, 5L, 1#2")
_ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PUT_BACK = 3 * 3600 * SECOND
"""No zone puts its clocks back by more."""


class Timing(Protocol):
    """When something is due."""

    def after(self, instant: int) -> int | None:
        """The first due time after the instant; None if there is none any more."""
        ...

    def latest(self, instant: int, count: int) -> list[int]:
        """Up to ``count`` of the last due times until the instant and at it, newest first."""
        ...


class Cron:
    """A cron expression in a time zone."""

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        fields = check_cron(expression).split()
        self._zone = find_zone(timezone)
        self._seconds: list[int] | None = None
        self._fixed = not fields[-5].startswith("*") and not fields[-4].startswith("*")
        if len(fields) == 6 and self._fixed:
            # The rules for the days that the clocks change are for minutes: the seconds go on top.
            self._seconds = sorted(CronSim(" ".join(fields), _ANY_TIME).seconds)
            fields = fields[1:]
        self._expression = " ".join(fields)

    def after(self, instant: int) -> int | None:
        return next((due for due in self._forwards(instant) if due > instant), None)

    def latest(self, instant: int, count: int) -> list[int]:
        found = (due for due in self._backwards(instant) if due <= instant)
        return list(islice(found, count))

    def _forwards(self, instant: int) -> Iterator[int]:
        minute = 0 if self._seconds is None else 60 * SECOND
        for due in CronSim(self._expression, self._local(instant - minute)):
            for second in self._seconds or (0,):
                yield _to_micros(due) + second * SECOND

    def _backwards(self, instant: int) -> Iterator[int]:
        # Fixed times go by the clock on the wall, which may have been put back since: begin later than that.
        later = _PUT_BACK if self._fixed else SECOND
        for due in CronSim(self._expression, self._local(instant + later), reverse=True):
            for second in reversed(self._seconds or (0,)):
                yield _to_micros(due) + second * SECOND

    def _local(self, instant: int) -> datetime:
        return to_datetime(instant).astimezone(self._zone)


class Every:
    """A plain interval, counted from an anchor."""

    def __init__(self, interval: int, anchor: int) -> None:
        self._interval = interval
        self._anchor = anchor

    def after(self, instant: int) -> int:
        return self._at_or_before(instant) + self._interval

    def latest(self, instant: int, count: int) -> list[int]:
        last = self._at_or_before(instant)
        return [last - number * self._interval for number in range(count)]

    def _at_or_before(self, instant: int) -> int:
        return instant - (instant - self._anchor) % self._interval


@lru_cache(1000)
def cron(expression: str, timezone: str) -> Cron:
    """A ``Cron``, made once."""
    return Cron(expression, timezone)


def check_cron(expression: str) -> str:
    """The expression, its short name spelled out; refused with the place of the fault if it is a bad one."""
    if not isinstance(expression, str):
        raise ConfigError(
            f"cron={expression!r} is a {type(expression).__name__}: pass text such as '*/5 * * * *'"
        )
    if expression.strip().startswith("@"):
        spelled = _NAMED.get(expression.strip().lower())
        if spelled is None:
            raise ConfigError(f"cron={expression!r}: the short names are {', '.join(_NAMED)}")
        return spelled
    fields = expression.split()
    if len(fields) not in (5, 6):
        raise ConfigError(
            f"cron={expression!r} has {len(fields)} fields: pass minute, hour, day of month, month and "
            "day of week, with seconds before them if you like"
        )
    try:
        due = CronSim(expression, _ANY_TIME)
    except (CronSimError, ValueError):
        raise ConfigError(_fault(expression, fields)) from None
    if next(due, None) is None:
        raise ConfigError(f"cron={expression!r} is never due: there is no such date")
    return expression


def _fault(expression: str, fields: list[str]) -> str:
    """What is wrong with a bad expression, and at which character."""
    place = 0
    for number, field in enumerate(fields):
        place = expression.index(field, place)
        for part in field.split(","):
            if not _is_good(part, number, len(fields)):
                known = number + 6 - len(fields)
                return (
                    f"cron={expression!r}: {part!r} at character {place + 1} is no {_FIELDS[known]}: "
                    f"that field takes {_TAKES[known]}, *, ranges a-b, steps */n and lists a,b"
                )
            place += len(part) + 1
        place -= 1
    return f"cron={expression!r} is never due: no month of those has such a day"


def _is_good(part: str, number: int, of: int) -> bool:
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
            f"timezone={name!r} is not known here: pass an IANA name such as 'Europe/Berlin' "
            "(where the system has no time zones, install tzdata)"
        ) from None


def _to_micros(due: datetime) -> int:
    return (due.astimezone(UTC) - EPOCH) // _MICROSECOND
