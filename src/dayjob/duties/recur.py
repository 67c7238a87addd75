"""Recurring jobs are enqueued at their due times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dayjob.model.durations import SECOND
from dayjob.runtime.signals import Topic, documents_topic

if TYPE_CHECKING:
    from dayjob.broker.schedules import Schedules


class Recur:
    """Sleeps until the next due time. A changed schedule wakes it."""

    name = "recur"
    topics: tuple[Topic, ...] = (documents_topic("schedule"),)

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    async def run_once(self) -> float:
        return await self._schedules.fire() / SECOND
