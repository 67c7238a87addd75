"""Random choices that a seed repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random  # noqa: TID251 - a run is repeated by its seed, which entropy has none of
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """The choices of one process of a run."""

    def __init__(self, seed: object, pace: float = 1.0) -> None:
        self._random = Random(str(seed))
        self._pace = pace

    def seconds(self, low: float, high: float) -> float:
        """Return the length of a fault, shorter in a run of a quick pace."""
        return self.between(low, high) * self._pace

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def number(self, below: int) -> int:
        return self._random.randrange(below)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def one(self, items: Sequence[T]) -> T:
        return self._random.choice(items)

    def weighted(self, weights: Mapping[T, float]) -> T:
        return self._random.choices(list(weights), list(weights.values()))[0]
