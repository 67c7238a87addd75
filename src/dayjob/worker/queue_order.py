"""The order in which a worker claims from its queues: as given, or by weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class QueueOrder:
    """With weights, each claim begins with another queue, as often as its weight (smooth round robin)."""

    def __init__(self, queues: Sequence[str], weights: Mapping[str, int] | None = None) -> None:
        self.queues = tuple(queues)
        self._weights = dict(weights or {})
        self._credits = dict.fromkeys(self._weights, 0)

    def next(self) -> tuple[str, ...]:
        """Return the queues for the next claim."""
        if not self._weights:
            return self.queues
        for queue, weight in self._weights.items():
            self._credits[queue] += weight
        order = sorted(self._credits, key=self._credits.__getitem__, reverse=True)
        self._credits[order[0]] -= sum(self._weights.values())
        return tuple(order)
