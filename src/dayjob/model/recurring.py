"""Recurring jobs: the declaration, the stored schedule, and the due times up to a given time.

Pure. The broker stores a ``Schedule`` and its jobs in one commit, so that each due time fires once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from dayjob.errors import ConfigError
from dayjob.model.cron import Every, Timing, check_cron, cron, find_zone
from dayjob.model.durations import (
    SECOND,
    Duration,
    to_datetime,
    to_datetime_or_none,
    to_micros,
    to_seconds_or_none,
)
from dayjob.model.job import DedupScope, DedupUntil, Latest, NewJob, by_name
from dayjob.model.names import KEY_BYTES, as_config_error, check_name

if TYPE_CHECKING:
    from dayjob.task import Task

Missed = Literal["skip", "once", "all"]

LATE = 30 * SECOND
"""A due time that is no older than this is late, not missed: workers were busy, or elected a new leader."""

MAX_MISSED = 1000
"""How many missed due times ``missed="all"`` fires; older ones are skipped."""

SHORTEST_INTERVAL = SECOND // 10

SCHEDULE_HEADER = "dayjob-schedule"
DUE_HEADER = "dayjob-due"


class RecurringOptions(Struct, frozen=True, kw_only=True):
    """The options that a recurring job passes on to its jobs."""

    priority: int | None = None
    max_attempts: int | None = None
    headers: Mapping[str, str] | None = None
    tenant: str | None = None
    limits: tuple[str, ...] = ()
    units: Mapping[str, int] | None = None


def job_options(given: RecurringOptions | NewJob) -> dict[str, Any]:
    """Return the options that are set, by name."""
    names = RecurringOptions.__struct_fields__
    return {name: value for name in names if (value := getattr(given, name)) is not None}


class Recurring(RecurringOptions, frozen=True):
    """A job that is enqueued repeatedly: by ``cron`` in a time zone, or ``every`` so many seconds.

    ``task`` is a task or the name of one. ``args`` are its arguments: a mapping by name or, with the task
    itself, a sequence. ``missed`` sets which due times of a downtime fire.
    """

    id: str
    cron: str | None = None
    every: Duration | None = None
    task: Task[Any, Any, Any] | str = ""
    args: Sequence[Any] | Mapping[str, Any] = ()
    queue: str | None = None
    timezone: str = "UTC"
    missed: Missed = "once"
    payload: bytes | None = None

    def __post_init__(self) -> None:
        name = f"Recurring({self.id!r})"
        try:
            check_name(self.id, "schedule id", KEY_BYTES)
            check_timing(self.cron, self.every, self.timezone, self.missed)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        if not isinstance(self.task, str) and not hasattr(self.task, "bind"):
            kind = type(self.task).__name__
            raise ConfigError(f"{name}: task={self.task!r} is a {kind}: pass a task, or the name of one")
        if self.payload is not None and (self.task or self.args):
            raise ConfigError(f"{name}: payload is for jobs without a task: pass args instead")
        if isinstance(self.task, str) and self.args and not isinstance(self.args, Mapping):
            raise ConfigError(
                f"{name}: args={self.args!r} with the name of a task: "
                "pass a mapping by parameter, or the task itself"
            )
        if isinstance(self.args, str | bytes) or not isinstance(self.args, Sequence | Mapping):
            raise ConfigError(f"{name}: args={self.args!r}: pass a sequence or a mapping of arguments")


def check_timing(cron: str | None, every: Duration | None, timezone: str, missed: str) -> None:
    """Raise ``ConfigError`` for invalid due times."""
    if (cron is None) == (every is None):
        raise ConfigError(f"cron={cron!r} and every={every!r}: pass one of the two")
    if cron is not None:
        check_cron(cron)
    else:
        with as_config_error():
            interval = to_micros(cast("Duration", every), "every")
        if interval < SHORTEST_INTERVAL:
            raise ConfigError(f"every={every!r} is too often: pass 0.1 seconds or more")
        if timezone != "UTC":
            raise ConfigError(f"timezone={timezone!r} has no effect with every={every!r}: leave it out")
    find_zone(timezone)
    if missed not in ("skip", "once", "all"):
        raise ConfigError(f"missed={missed!r}: pass 'skip', 'once' or 'all'")


class Due(Struct, frozen=True):
    """The due times to fire at some time, and the schedule after that."""

    times: list[int]
    schedule: Schedule
    skipped: int = 0
    """The number of missed due times that do not fire; a lower bound if there are very many."""


class Schedule(RecurringOptions, frozen=True, omit_defaults=True):
    """A stored recurring job, with its last and next fire times."""

    id: str
    queue: str
    task: str
    payload: bytes
    next_us: int | None
    """None: never due again."""
    last_us: int | None = None
    cron: str | None = None
    every_us: int = 0
    timezone: str = "UTC"
    missed: Missed = "once"
    dedup_key: str | None = None
    dedup_until: DedupUntil = "claimed"
    dedup: Latest | None = None
    dedup_max_delay: float | None = None
    dedup_for: float | None = None
    dedup_scope: DedupScope = "queue"
    paused: bool = False
    app: str | None = None
    """The app whose code declares it. It is removed when the code no longer declares it."""
    problem: str | None = None
    """The reason why it is due and does not fire."""
    held_us: int | None = None
    """The time since when another client's open transaction holds it up. Later due times are not missed."""

    def __post_init__(self) -> None:
        if self.cron is None and self.every_us < 1:
            raise ValueError("the schedule has neither cron nor an interval")

    @property
    def next_at(self) -> datetime | None:
        """The next fire time. None while paused, and if it is never due again."""
        return None if self.paused else to_datetime_or_none(self.next_us)

    @property
    def last_at(self) -> datetime | None:
        """The last due time that fired."""
        return to_datetime_or_none(self.last_us)

    @property
    def every(self) -> float | None:
        """The interval in seconds."""
        return self.every_us / SECOND if self.every_us else None

    @property
    def timing(self) -> Timing:
        if self.cron is not None:
            return cron(self.cron, self.timezone)
        return Every(self.every_us, self.next_us or 0)

    def due(self, now: int) -> Due:
        """Return the due times to fire now."""
        first = self.next_us
        if self.paused or first is None or first > now:
            return Due([], self)
        timing = self.timing
        times = [first]
        older: set[int] = set()
        while (following := timing.after(times[-1])) is not None and following <= now:
            times.append(following)
            if len(times) > MAX_MISSED:
                newest = timing.latest(now, MAX_MISSED)
                older = set(times).difference(newest)
                times = [*takewhile(lambda due: due >= first, newest)][::-1]
                following = timing.after(now)
                break
        fired = self._chosen(times, now if self.held_us is None else self.held_us)
        last = fired[-1] if fired else self.last_us
        after = replace(self, next_us=following, last_us=last, problem=None, held_us=None)
        return Due(fired, after, len(older) + len(times) - len(fired))

    def _chosen(self, times: list[int], now: int) -> list[int]:
        """Return the due times to fire: of those up to now by ``missed``, and all later ones."""
        if self.missed == "all" or now - times[0] <= LATE:
            return times
        later = [time for time in times if time > now]
        newest = times[len(times) - len(later) - 1 :]
        return newest if self.missed == "once" or now - newest[0] <= LATE else later

    def replacing(self, old: Schedule | None, now: int) -> Schedule:
        """Return this new declaration with the history of the stored one that it replaces.

        The next due time stays too, unless the timing has changed.
        """
        if old is None:
            return self.starting(now)
        merged = replace(
            self, last_us=old.last_us, paused=old.paused, problem=old.problem, held_us=old.held_us
        )
        if (self.cron, self.every_us, self.timezone) == (old.cron, old.every_us, old.timezone):
            return replace(merged, next_us=old.next_us)
        return merged.starting(now)

    def resumed(self, now: int) -> Schedule:
        """Return the schedule no longer paused. Due times of the pause do not fire."""
        overdue = self.next_us is not None and self.next_us <= now
        following = self.timing.after(now) if overdue else self.next_us
        return replace(self, paused=False, next_us=following, held_us=None).realigned(now)

    def realigned(self, now: int) -> Schedule:
        """Return the schedule with another next due time if the stored one is too far ahead.

        The clock was set back then. After a small step the next due time stays, so that no due time fires
        twice: it may be the second one from now, or up to ``LATE`` ahead.
        """
        if self.paused:
            return self
        first = self.timing.after(now)
        second = None if first is None else self.timing.after(first)
        if first is None or (
            self.next_us is not None and (second is None or self.next_us <= max(second, now + LATE))
        ):
            return self
        return replace(self, next_us=first, problem=None, held_us=None)

    def starting(self, now: int) -> Schedule:
        """Return the schedule, next due after now. An interval counts from the last fire time."""
        if self.cron is not None:
            return replace(
                self, next_us=cron(self.cron, self.timezone).after(now), problem=None, held_us=None
            )
        start = now if self.last_us is None else min(self.last_us, now)  # The clock may have been set back.
        return replace(self, next_us=max(start + self.every_us, now), problem=None, held_us=None)

    def new_job(self, due: int | None) -> NewJob:
        """Return the job for one due time. None: triggered manually."""
        headers = {**(self.headers or {}), SCHEDULE_HEADER: self.id}
        if due is not None:
            headers[DUE_HEADER] = to_datetime(due).isoformat()
        options = {**job_options(self), "headers": headers}
        return by_name(
            NewJob(
                self.queue, self.payload, self.task, dedup_key=self.dedup_key, dedup_until=self.dedup_until,
                dedup=self.dedup, dedup_max_delay=self.dedup_max_delay, dedup_for=self.dedup_for,
                dedup_scope=self.dedup_scope, **options,
            )
        )  # fmt: skip


def to_schedule(recurring: Recurring, template: NewJob, app: str | None) -> Schedule:
    """Return the schedule of a recurring job, without a next due time."""
    options = {**job_options(template), "headers": dict(template.headers or {}) or None}
    options["limits"] = tuple(template.limits)
    interval = 0 if recurring.every is None else to_micros(recurring.every, "every")
    return Schedule(
        id=recurring.id,
        queue=template.queue,
        task=template.task,
        payload=bytes(template.payload),
        next_us=None,
        cron=None if recurring.cron is None else " ".join(check_cron(recurring.cron).split()),
        every_us=interval,
        timezone=recurring.timezone,
        missed=recurring.missed,
        dedup_key=template.dedup_key,
        dedup_until=template.dedup_until,
        dedup=template.dedup,
        dedup_max_delay=to_seconds_or_none(template.dedup_max_delay, "dedup_max_delay"),
        dedup_for=to_seconds_or_none(template.dedup_for, "dedup_for"),
        dedup_scope=template.dedup_scope,
        app=app,
        **options,
    )
