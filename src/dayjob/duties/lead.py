"""The election of the process that does the duties of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dayjob.duties.service import Duty
from dayjob.runtime.signals import LEAD, Signals, Topic, documents_topic

if TYPE_CHECKING:
    from dayjob.broker.leader_election import LeaderElection

FOLLOWER_INTERVAL = 5.0
"""Seconds between the checks of a follower. A lead that is renewed late is not published again."""


class Lead:
    """Renews the lead of this process, or takes it over when the leader is gone."""

    name = "lead"
    topics: tuple[Topic, ...] = (documents_topic("duty"),)

    def __init__(self, election: LeaderElection, signals: Signals) -> None:
        self._election = election
        self._signals = signals

    async def run_once(self) -> float:
        led = self._election.leads
        delay = await self._election.seek()
        if self._election.leads and not led:
            self._signals.publish([LEAD])
        return delay


class Led:
    """A duty that runs only in the process that leads."""

    def __init__(self, duty: Duty, election: LeaderElection) -> None:
        self.name = duty.name
        self.topics = (*duty.topics, LEAD)
        self._duty = duty
        self._election = election

    async def run_once(self) -> float | None:
        return await self._duty.run_once() if self._election.leads else FOLLOWER_INTERVAL
