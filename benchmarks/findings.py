"""What a measure found, and whether that is good enough."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Literal

from msgspec import Struct

Unit = Literal["×", "ms", "%", "/s", "MiB", "bytes", ""]


class Finding(Struct, frozen=True, kw_only=True):
    """One figure. With a bound it passes or not; if it ``must`` and does not, the run fails."""

    measure: str
    engine: str
    what: str
    figures: str
    value: float
    unit: Unit
    at_least: float | None = None
    at_most: float | None = None
    must: bool = True

    @property
    def passed(self) -> bool | None:
        """None when nothing is asked of it."""
        if self.at_least is not None:
            return self.value >= self.at_least
        if self.at_most is not None:
            return self.value <= self.at_most
        return None

    @property
    def failed(self) -> bool:
        return self.must and self.passed is False

    @property
    def shown(self) -> str:
        return _with_unit(self.value, self.unit)

    @property
    def wanted(self) -> str:
        if self.at_least is not None:
            return f"≥ {_with_unit(self.at_least, self.unit)}"
        return "" if self.at_most is None else f"≤ {_with_unit(self.at_most, self.unit)}"

    @property
    def verdict(self) -> str:
        if self.passed is None:
            return ""
        if self.must:
            return "pass" if self.passed else "FAIL"
        return "ok" if self.passed else "missed"


def _with_unit(value: float, unit: Unit) -> str:
    return f"{number(value)}{unit}" if unit in ("×", "/s") else f"{number(value)} {unit}"


def number(value: float) -> str:
    """Three digits that matter, and all of a large number."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def rate(value: float) -> str:
    return f"{number(value)}/s"


def millis(seconds: float) -> str:
    return f"{number(seconds * 1000)} ms"


def paired_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """How many times the others' rate the ones' is: the median over rounds, each compared with its own."""
    return median(one / other for one, other in zip(ones, others, strict=True))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least that share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(len(ordered) * percent / 100) - 1, 0)]
