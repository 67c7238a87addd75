"""Limits: how many jobs run at once, and how many start in a time. Pure values; engines apply them.

A job names the buckets that it takes room from. A bucket is a limit, or a limit with a key: ``stripe``,
``customer:42``. The settings of a bucket are those stored under its whole name, else those stored under the
name of its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from dayjob.errors import ConfigError
from dayjob.model.durations import SECOND, Duration, to_micros
from dayjob.model.names import KEY_BYTES, as_config_error, check_name

if TYPE_CHECKING:
    from dayjob.model.job import Job

MAX_LIMITS = 8
"""The largest number of limits of a job."""

MAX_UNITS = 2**31 - 1
"""The largest number of units, of running jobs and of a rate."""

QUEUE = "queue"
"""The limit of a queue as a whole is the bucket ``queue:NAME``."""

Bucket = str
Units = tuple[tuple[Bucket, int], ...]
"""The buckets of a job, each with the units that the job takes from it."""


class LimitSettings(Struct, frozen=True, omit_defaults=True):
    """A stored limit. ``per`` is in microseconds. Without ``running`` or ``rate`` that side has no bound."""

    running: int | None = None
    rate: int | None = None
    per: int = SECOND
    burst: int = 1
    app: str | None = None
    """The app whose code declares it. None: set by hand."""

    def cost(self, units: int) -> int:
        """Return the microseconds in which the rate admits that many units."""
        return 0 if self.rate is None else -(-units * self.per // self.rate)

    def due(self, tat: int, units: int) -> int:
        """Return the time from which a bucket with this arrival time admits the units.

        An idle bucket admits any number, so that no job waits for ever if the limit was lowered.
        """
        return tat - max(self.cost(self.burst) - self.cost(units), 0)

    @property
    def size(self) -> int:
        """The largest number of units that a job can take."""
        sizes = [self.running] if self.running is not None else []
        return min([*sizes, self.burst] if self.rate is not None else sizes, default=MAX_UNITS)


class Limit(Struct, frozen=True):
    """A limit on jobs, shared by all tasks and queues that name it.

    ``running``: the jobs that run at once. ``rate``, ``per``, ``burst``: the jobs that start in ``per``
    seconds, and how many of them may start together. ``key`` gets the arguments of a call and returns the key
    within the limit: each key has its own room. The arguments are passed by parameter name.
    """

    name: str = ""
    running: int | None = None
    rate: int | None = None
    per: Duration = 1
    burst: int = 1
    key: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        if self.name:
            with as_config_error():
                check_limit_name(self.name)
        for field in ("running", "rate", "burst"):
            value = getattr(self, field)
            if value is not None and not _whole(value):
                raise ConfigError(f"Limit({self.name!r}): {field}={value!r}: pass a whole number, 1 or more")
        if self.running is None and self.rate is None:
            raise ConfigError(f"Limit({self.name!r}) limits nothing: pass running, rate, or both")
        if self.rate is None and (self.per != 1 or self.burst != 1):
            raise ConfigError(
                f"Limit({self.name!r}): per and burst belong to a rate: pass rate, or leave both out"
            )
        with as_config_error():
            if to_micros(self.per, "per") < 1:
                raise ValueError(f"Limit({self.name!r}): per={self.per!r}: pass some seconds")
        if self.key is not None and not callable(self.key):
            raise ConfigError(
                f"Limit({self.name!r}): key={self.key!r} is a {type(self.key).__name__}: pass a function of "
                "the task's arguments"
            )

    def settings(self, app: str | None = None) -> LimitSettings:
        """Return the limit as it is stored."""
        return LimitSettings(self.running, self.rate, to_micros(self.per, "per"), self.burst, app)

    def bucket(self, args: Sequence[Any], arguments: Mapping[str, Any]) -> Bucket:
        """Return the bucket of a call. ``args`` are those without a name."""
        return self.name if self.key is None else f"{self.name}:{self.key(*args, **arguments)}"

    def check_units(self, units: int) -> None:
        """Raise ``ValueError`` for units that the limit can never admit."""
        size = self.settings().size
        if units > size:
            field = "running" if self.running is not None and self.running == size else "burst"
            raise ValueError(
                f"units={units:,} of limit {self.name!r}, which admits {size:,} at most: "
                f"pass fewer units, or raise its {field}"
            )


class LimitInfo(Struct, frozen=True):
    """A stored limit, and its use: the units of running jobs, and the jobs that wait for room."""

    name: str
    settings: LimitSettings
    running: int = 0
    limited: int = 0


@lru_cache(1024)
def decode_settings(value: bytes) -> LimitSettings:
    """Return a stored limit. One that can't be decoded has no bound."""
    try:
        return msgspec.json.decode(value, type=LimitSettings)
    except (msgspec.MsgspecError, ValueError):
        return LimitSettings()


encode_settings = msgspec.json.Encoder().encode


def limit_name(bucket: Bucket) -> str:
    return bucket.partition(":")[0]


def settings_of(bucket: Bucket, stored: Mapping[str, bytes]) -> LimitSettings | None:
    """Return the settings of a bucket from the stored limits by name. None: it has no bound."""
    value = stored.get(bucket)
    if value is None:
        value = stored.get(limit_name(bucket))
    return None if value is None else decode_settings(value)


def queue_bucket(queue: str) -> Bucket:
    return f"{QUEUE}:{queue}"


def check_limit_name(name: object) -> None:
    """Raise unless this is a name for a limit of tasks."""
    check_name(name, "limit name", KEY_BYTES // 4)
    if ":" in str(name) or name == QUEUE:
        raise ValueError(f"the limit name {name!r} is reserved for keys and queues: use a name without ':'")


def check_bucket(bucket: object) -> None:
    check_name(bucket, "limit", KEY_BYTES)
    check_limit_name(limit_name(str(bucket)))


def charges_of(job: Job, used: Mapping[str, int]) -> Units:
    """Return the units that a run has used beyond those that its claim took, by bucket."""
    taken = {limit_name(bucket): (bucket, units) for bucket, units in job.limits}
    charges = []
    for name, units in used.items():
        if name not in taken:
            raise ValueError(
                f"charge of {name!r}, which is no limit of job {job.id}: name one of {list(taken)}"
            )
        if isinstance(units, bool) or not isinstance(units, int) or not 0 <= units <= MAX_UNITS:
            raise ValueError(f"charge of {units!r} to {name!r}: pass a whole number, 0 or more")
        bucket, expected = taken[name]
        if units != expected:
            charges.append((bucket, units - expected))
    return tuple(charges)


def check_stored_limit(name: str) -> str:
    """Return the name. Raise unless a limit can be stored under it."""
    if not (isinstance(name, str) and name.startswith(f"{QUEUE}:")):
        check_bucket(name)
    check_name(name, "limit", KEY_BYTES)
    return name


def check_units(units: object, name: str) -> None:
    if not _whole(units):
        raise ValueError(f"units={units!r} of limit {name!r}: pass a whole number from 1 to {MAX_UNITS:,}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_UNITS
