"""Short histories for the tests of the checker, written call by call."""

from __future__ import annotations

from typing import Any

from tests.chaos.history import History
from tests.chaos.record import (
    Announced,
    Answer,
    AnyEntry,
    Change,
    Claim,
    ClaimedItem,
    Closed,
    Duty,
    Ended,
    EndedItem,
    Enqueue,
    Fault,
    Final,
    FinalJob,
    FinalSchedule,
    NewItem,
    Opened,
    Run,
    Settle,
    SettleItem,
    Setup,
)

LEASE = 30
KEPT, BRIEF = "kept", "brief"


class Story:
    """A run of one process, a second a call. A call that is not ``lost`` is answered half a second later."""

    def __init__(self, **setup: Any) -> None:
        self.now = 0.0
        self._calls = 0
        self.entries: list[AnyEntry] = []
        self.final: dict[str, FinalJob] = {}
        self.kv: list[str] = []
        self.schedules: list[FinalSchedule] = []
        self.stats: dict[str, dict[str, int]] | None = None
        self.add(Opened(pid=1, role="all", announces=True))
        self.add(Setup(**{"kept": [KEPT], **setup}))

    def add(self, entry: AnyEntry) -> None:
        self.now += 1
        entry.at = self.now
        self.entries.append(entry)

    def call(self, entry: Any, answer: Any, lost: bool = False) -> None:
        self._calls += 1
        entry.number = self._calls
        self.add(entry)
        if not lost:
            self.entries.append(Answer(at=self.now + 0.5, number=entry.number, value=answer))

    def enqueue(
        self, *ids: str, created: bool = True, holder: str = "", lost: bool = False, **item: Any
    ) -> None:
        items = [NewItem(id, **{"queue": KEPT, **item}) for id in ids]
        self.call(Enqueue(jobs=items), [(holder or id, created) for id in ids], lost)
        if created and not lost:
            for each in items:
                self.final[each.id] = FinalJob(
                    each.id, each.queue, "pending", 0, 3, each.dedup_key, each.dedup_until
                )
                self.kv += each.kv

    def claim(self, id: str, epoch: int, attempts: int = 1, limits: Any = None, priority: int = 1000) -> None:
        granted = round((self.now + 1) * 1_000_000)
        queue = self.final[id].queue if id in self.final else KEPT
        item = ClaimedItem(
            id, str(epoch), queue, priority, epoch, attempts, 3, granted + LEASE * 1_000_000, granted,
            limits or {},
        )  # fmt: skip
        self.call(Claim(queues=[queue]), [item])
        self._set(id, "running", attempts)

    def settle(
        self, id: str, epoch: int, transition: str = "ack", state: str | None = "done", lost: bool = False,
        insert: tuple[str, ...] = (), kv: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        items = [NewItem(each, KEPT) for each in insert]
        self.call(Settle(ops=[SettleItem(id, str(epoch), transition, items, list(kv))]), [state], lost)
        if state is not None and not lost:
            self._set(id, state)
            for each in insert:
                self.final[each] = FinalJob(each, KEPT, "pending", 0, 3)
            self.kv += kv

    def end(
        self, id: str, state: str = "pending", error: str = "lease expired", reported: bool = True
    ) -> None:
        """End the claim of the job by a duty, after its lease."""
        self.now += LEASE
        item = EndedItem(id, "running", state, error)
        self.call(Duty(verb="reap", token=str(self._calls)), [item])
        if reported:
            self.add(Ended(jobs=[item]))
        self._set(id, state)

    def change(self, verb: str, id: str, outcome: Any, state: str | None = None) -> None:
        self.call(Change(verb=verb, ids=[id]), [outcome])
        if state is not None:
            self._set(id, state)

    def run(self, id: str, epoch: int) -> None:
        self.add(Run(id=id, claim=str(epoch)))

    def announce(self, id: str) -> None:
        self.add(Announced(event="job.dead", id=id))

    def fault(self, seconds: float = 1, **fault: Any) -> None:
        self.add(Fault(kind="test", until=self.now + 1 + seconds, **fault))

    def _set(self, id: str, state: str, attempts: int | None = None) -> None:
        if id in self.final:
            job = self.final[id]
            job.state = state
            job.attempts = job.attempts if attempts is None else attempts

    def history(self, closed: bool = True) -> History:
        if closed:
            self.add(Closed())
        stats: dict[str, dict[str, int]] = {}
        for job in self.final.values():
            counts = stats.setdefault(job.queue, {})
            counts[job.state] = counts.get(job.state, 0) + 1
        final = Final(list(self.final.values()), self.stats or stats, self.kv, self.schedules)
        return History({"one": self.entries}, final)
