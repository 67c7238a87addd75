"""The result of a measure, and whether it is within its bound."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Literal

from msgspec import Struct

Unit = Literal["×", "ms", "%", "/s", "MiB", "bytes", ""]


class Result(Struct, frozen=True, kw_only=True):
    """One figure, with an optional bound. A missed bound that is ``required`` fails the run."""

    measure: str
    engine: str
    description: str
    figures: str
    value: float
    unit: Unit
    at_least: float | None = None
    at_most: float | None = None
    required: bool = True

    @property
    def passed(self) -> bool | None:
        """None without a bound."""
        if self.at_least is not None:
            return self.value >= self.at_least
        if self.at_most is not None:
            return self.value <= self.at_most
        return None

    @property
    def failed(self) -> bool:
        return self.required and self.passed is False

    @property
    def value_text(self) -> str:
        return _with_unit(self.value, self.unit)

    @property
    def bound_text(self) -> str:
        if self.at_least is not None:
            return f"≥ {_with_unit(self.at_least, self.unit)}"
        return "" if self.at_most is None else f"≤ {_with_unit(self.at_most, self.unit)}"

    @property
    def status(self) -> str:
        if self.passed is None:
            return ""
        if self.required:
            return "pass" if self.passed else "FAIL"
        return "ok" if self.passed else "missed"


def _with_unit(value: float, unit: Unit) -> str:
    return f"{number(value)}{unit}" if unit in ("×", "/s") else f"{number(value)} {unit}"


def number(value: float) -> str:
    """Return three significant digits, or all digits of a large number."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def rate(value: float) -> str:
    return f"{number(value)}/s"


def millis(seconds: float) -> str:
    return f"{number(seconds * 1000)} ms"


def paired_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over the rounds of the ratio in each round."""
    return median(one / other for one, other in zip(ones, others, strict=True))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is at or above that share of the values."""
    ordered = sorted(values)
    return ordered[max(ceil(len(ordered) * percent / 100) - 1, 0)]
