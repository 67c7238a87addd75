"""The counters are stored each minute, for charts of the throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dayjob.model.durations import SECOND
from dayjob.runtime.signals import Topic

if TYPE_CHECKING:
    from dayjob.broker.history import History


class Sample:
    """Stores a sample of the counters at the start of each minute."""

    name = "sample"
    topics: tuple[Topic, ...] = ()

    def __init__(self, history: History) -> None:
        self._history = history

    async def run_once(self) -> float:
        return await self._history.sample() / SECOND
