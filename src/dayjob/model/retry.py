"""Retry policies: how often a job may run, and the delay after a failure.

Pure: the caller passes the random number for the jitter.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from sys import float_info
from typing import Literal, Self

from msgspec import Struct

from dayjob.errors import ConfigError
from dayjob.model.durations import LONGEST, SECOND, Duration, to_micros
from dayjob.model.names import as_config_error

Jitter = Literal["none", "full", "equal"]
DelayFunction = Callable[[int, BaseException], float | None]
"""Takes the failed attempt (from 1) and its exception. Returns seconds, or None for no retry."""

_LONGEST_SECONDS = LONGEST / SECOND
_MAX = float_info.max


class Retry(Struct, frozen=True, kw_only=True):
    """The number of attempts and the delays between them. Build one with a class method below."""

    attempts: int = 3
    base: Duration = 1.0
    factor: float = 2.0
    step: Duration = 0.0
    cap: Duration = 300.0
    jitter: Jitter = "none"
    give_up_on: tuple[type[BaseException], ...] = ()
    function: DelayFunction | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigError(f"Retry attempts={self.attempts!r}: pass a whole number of runs, 1 or more")
        for name in ("base", "step", "cap"):
            _seconds(getattr(self, name), name)
        factor = self.factor
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= _MAX:
            raise ConfigError(f"Retry factor={factor!r}: pass a finite number above 0")
        if self.jitter not in ("none", "full", "equal"):
            raise ConfigError(f"Retry jitter={self.jitter!r}: pass 'none', 'full' or 'equal'")
        if not isinstance(self.give_up_on, tuple) or not all(
            isinstance(item, type) and issubclass(item, BaseException) for item in self.give_up_on
        ):
            raise ConfigError(f"Retry give_up_on={self.give_up_on!r}: pass a tuple of exception classes")
        if self.function is not None and not callable(self.function):
            raise ConfigError(f"Retry function={self.function!r}: pass a callable (attempt, exc) -> seconds")

    @classmethod
    def none(cls) -> Self:
        """One run and no retry."""
        return cls(attempts=1, base=0.0, cap=0.0)

    @classmethod
    def fixed(
        cls,
        attempts: int = 3,
        delay: Duration = 1.0,
        *,
        jitter: Jitter = "none",
        give_up_on: tuple[type[BaseException], ...] = (),
    ) -> Self:
        """The same delay after each failure."""
        _seconds(delay, "delay")
        return cls(attempts=attempts, base=delay, factor=1.0, cap=delay, jitter=jitter, give_up_on=give_up_on)

    @classmethod
    def exponential(
        cls,
        attempts: int = 3,
        base: Duration = 1.0,
        factor: float = 2.0,
        cap: Duration = 300.0,
        jitter: Jitter = "none",
        *,
        give_up_on: tuple[type[BaseException], ...] = (),
    ) -> Self:
        """``min(base * factor ** (n - 1), cap)`` after attempt n."""
        return cls(attempts=attempts, base=base, factor=factor, cap=cap, jitter=jitter, give_up_on=give_up_on)

    @classmethod
    def linear(
        cls,
        attempts: int = 3,
        base: Duration = 1.0,
        step: Duration | None = None,
        cap: Duration = 300.0,
        jitter: Jitter = "none",
        *,
        give_up_on: tuple[type[BaseException], ...] = (),
    ) -> Self:
        """``min(base + step * (n - 1), cap)`` after attempt n. ``step`` defaults to ``base``."""
        return cls(
            attempts=attempts, base=base, factor=1.0, step=base if step is None else step, cap=cap,
            jitter=jitter, give_up_on=give_up_on,
        )  # fmt: skip

    @classmethod
    def custom(
        cls,
        function: DelayFunction,
        attempts: int = 3,
        *,
        give_up_on: tuple[type[BaseException], ...] = (),
    ) -> Self:
        """Delays from a function ``(attempt, exc) -> seconds``, or None for no retry."""
        return cls(attempts=attempts, function=function, give_up_on=give_up_on)

    def delay(self, attempt: int, random: float = 1.0) -> float:
        """Return the seconds to wait after this attempt (from 1). ``random`` in 0...1 sets the jitter."""
        if attempt < 1:
            raise ValueError(f"attempt={attempt!r}: attempts count from 1")
        base, cap = _seconds(self.base, "base"), _seconds(self.cap, "cap")
        try:
            grown = base * float(self.factor) ** (attempt - 1) if base else 0.0
        except OverflowError:
            grown = cap
        whole = min(grown + _seconds(self.step, "step") * (attempt - 1), cap)
        if self.jitter == "full":
            return whole * random
        if self.jitter == "equal":
            return whole / 2 + whole / 2 * random
        return whole

    def after(self, attempt: int, error: BaseException, random: float = 1.0) -> float | None:
        """Return the seconds to wait after this failure, or None for no retry."""
        if isinstance(error, self.give_up_on):
            return None
        if self.function is None:
            return self.delay(attempt, random)
        chosen = self.function(attempt, error)
        if chosen is None:
            return None
        if isnan(min(chosen, _LONGEST_SECONDS)):
            raise ValueError(f"the retry function returned {chosen!r}: return seconds, or None for no retry")
        return float(min(max(chosen, 0.0), _LONGEST_SECONDS))


def as_retry(policy: Retry | DelayFunction, field: str) -> Retry:
    """Return the policy, or a policy with the function's delays."""
    if isinstance(policy, Retry):
        return policy
    if callable(policy):
        return Retry.custom(policy)
    raise ConfigError(
        f"{field}={policy!r}: pass a Retry, such as Retry.exponential(attempts=3), or a callable "
        "(attempt, exc) -> seconds"
    )


def _seconds(value: Duration, name: str) -> float:
    if type(value) in (float, int) and 0 <= value <= _LONGEST_SECONDS:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    with as_config_error("Retry "):
        return to_micros(value, name) / SECOND
