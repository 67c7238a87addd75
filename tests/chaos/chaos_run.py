"""One run: a fleet under load, random faults from a seed, and the check of its record."""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

from msgspec import Struct

from dayjob.runtime.clock import SYSTEM
from tests.chaos.environments import STEPS, Environment, Harm
from tests.chaos.fleet import Fleet, Slot, Supervisor
from tests.chaos.history import History
from tests.chaos.load import KEPT_QUEUES, LEASE, LIMITS, ORDERED
from tests.chaos.member import CLOCK_WAS_SET
from tests.chaos.record import Fault, Record, Setup
from tests.chaos.rules import Violation, check
from tests.chaos.seeded import Choices
from tests.support.processes import pause, spawning
from tests.support.shifted_clock import SharedOffset

SINGLE = ["produce", "consume", "operate", "work", "schedule", "drain"]


class Outcome(Struct):
    """The figures of a run."""

    engine: str
    seed: int
    seconds: float
    faults: dict[str, int]
    jobs: int
    runs: int
    settled: int
    unanswered: int
    at_risk: int
    """Jobs with a call in a time in which writes may be lost by contract. No rule applies to them."""
    lost: int
    double_settled: int
    recovery: float
    pause: float
    """The longest time without a settlement, in seconds. Faults are included."""
    violations: list[Violation]


class ChaosRun:
    def __init__(
        self,
        environment: Environment,
        folder: Path,
        seed: int,
        on_fault: Callable[[str], None],
        *,
        quick: bool = False,
    ) -> None:
        """``quick``: no job and no fault takes longer than a lease."""
        self._environment = environment
        self._folder = folder
        self._seed = seed
        self._choices = Choices(seed, 0.2 if quick else 1.0)
        self._quick = quick
        self._record = Record(folder, "controller")
        self._offset = SharedOffset(folder / "clock")
        self._on_fault = on_fault
        self._fleet: Fleet | None = None
        self._supervisor: Supervisor | None = None
        self.count = 0

    @property
    def fleet(self) -> Fleet:
        assert self._fleet is not None
        return self._fleet

    async def run(self, seconds: float, rate: float = 50) -> None:
        """Run the load and its faults for the seconds, then drain and stop."""
        self._record.write(Setup(kept=KEPT_QUEUES, ordered=[ORDERED], limits=LIMITS, drained=True))
        async with spawning() as spawn:
            self._fleet = Fleet(spawn, self._environment.url, self._folder, self._exited)
            self._environment.fleet = self._fleet
            if not (self._quick or self._environment.single):
                self._supervisor = Supervisor(self._environment.url, self._folder)
            try:
                await self._start({"seed": self._seed, "rate": rate, "long": not self._quick})
                ends = SYSTEM.elapsed() + seconds
                while SYSTEM.elapsed() < ends:
                    await pause(min(self._choices.between(0.1, 1.5), ends - SYSTEM.elapsed()))
                    await self._harm()
                await self._finish()
            finally:
                if self._supervisor is not None:
                    await self._supervisor.stop(SIGKILL)
                await self._fleet.close()
        self._record.close()

    async def _start(self, common: dict[str, Any]) -> None:
        if self._environment.single:
            exits = self._environment.durable and common["long"]
            restart = None if self._environment.durable else 5
            await self.fleet.start(SINGLE, exits=exits, restart_workers=restart, **common)
            return
        first = await self.fleet.start(["work", "schedule"], **common)
        first.roles = ["work"]  # Its replacements find the schedule.
        await asyncio.gather(
            self.fleet.start(["work"], **common),
            self.fleet.start(["consume", "operate"], **common),
            self.fleet.start(["produce"], exits=common["long"], **common),
        )
        if self._supervisor is not None:
            await self._supervisor.start()

    def _exited(self, slot: Slot, status: int) -> None:
        now = SYSTEM.elapsed()
        if status >= 0:
            self._record.write(Fault(kind="process ended", at=now, until=now))

    # Faults.

    async def _harm(self) -> None:
        faults: dict[str, Harm] = dict(self._environment.faults)
        if self._environment.durable:
            faults |= {
                "process killed": self._kill,
                "leader killed": self._kill_leader,
                "process frozen": self._freeze,
            }
        if not self._environment.own_clock:
            faults["clock set"] = self._step_clock
        else:
            faults["host clock wrong"] = self._skew
        if self._environment.take_over is not None:
            faults["fenced by a rival"] = self._fence
        if self._supervisor is not None:
            faults["supervisor killed"] = self._kill_supervisor
        name = self._choices.one(list(faults))
        begin = SYSTEM.elapsed()
        self.count += 1
        self._on_fault(name)
        await faults[name](self._choices)
        since, self._environment.lossy_since = self._environment.lossy_since, None
        lossy, end = since is not None, SYSTEM.elapsed()
        step, self._environment.step = self._environment.step, 0.0
        if step:
            (self._folder / CLOCK_WAS_SET).touch()
        self._record.write(Fault(kind=name, at=since or begin, until=end, lossy=lossy, step=step))

    def _victim(self) -> Slot:
        return self._choices.one(self.fleet.slots)

    async def _kill(self, choices: Choices) -> None:
        slot = self._victim()
        await slot.ready.wait()
        await self.fleet.kill(slot)
        await slot.ready.wait()

    async def _kill_leader(self, _: Choices) -> None:
        with suppress(OSError, ValueError):
            pid = int((self._folder / "leader").read_text())
            for slot in self.fleet.slots:
                if slot.child is not None and slot.child.pid == pid:
                    await self.fleet.kill(slot)
                    await slot.ready.wait()

    async def _kill_supervisor(self, _: Choices) -> None:
        assert self._supervisor is not None
        await self._supervisor.stop(SIGKILL)
        await self._supervisor.start()

    async def _freeze(self, choices: Choices) -> None:
        slot = self._victim()
        await slot.ready.wait()
        child = slot.child
        assert child is not None
        with suppress(ProcessLookupError):
            child.signal(SIGSTOP)
            await pause(choices.seconds(0.1, LEASE * 2))
            child.signal(SIGCONT)

    async def _fence(self, _: Choices) -> None:
        assert self._environment.take_over is not None
        slot = self.fleet.slots[0]
        await slot.ready.wait()
        await self.fleet.replace_live(slot, self._environment.take_over)
        await slot.ready.wait()

    async def _skew(self, choices: Choices) -> None:
        """Replace a process by one whose host has a wrong clock."""
        slot = self._victim()
        await slot.ready.wait()
        slot.options["skew"] = choices.one([0.0, *STEPS])
        await self.fleet.kill(slot)
        await slot.ready.wait()

    async def _step_clock(self, choices: Choices) -> None:
        """Set the clock of all processes, and set it right after a while."""
        step = choices.one(STEPS[:4] if self._environment.name == "slatedb" else STEPS)
        self._environment.step = step
        self._offset.set(step)
        await pause(choices.seconds(0.5, 3))
        self._offset.set(0)

    # The end.

    async def _finish(self) -> None:
        fleet = self.fleet
        self._offset.set(0)
        if self._environment.single:
            slot = fleet.slots[0]
            await fleet.drain(slot)
            await fleet.stop(slot)
            return
        workers = [slot for slot in fleet.slots if "work" in slot.roles or "consume" in slot.roles]
        for slot in fleet.slots:
            if slot not in workers:
                await fleet.stop(slot)
        drain = await fleet.start(["drain"])
        await fleet.drain(drain)
        await asyncio.gather(*(fleet.stop(slot) for slot in workers))
        if self._supervisor is not None:
            await self._supervisor.stop()
        await fleet.stop(drain)


def outcome(engine: str, seed: int, seconds: float, folder: Path) -> Outcome:
    """Check the record of a run. Return its figures."""
    history = History.load(folder)
    violations = check(history)
    faults = Counter(fault.kind for fault in history.faults)
    named = Counter(violation.rule for violation in violations)
    settlements = [each for job in history.jobs.values() for each in job.settlements]
    return Outcome(
        engine, seed, seconds, dict(faults),
        sum(bool(job.inserts or job.parents) for job in history.jobs.values()),
        sum(len(job.runs) for job in history.jobs.values()),
        sum(each.applied for each in settlements),
        sum(not each.answered for each in settlements),
        sum(map(history.is_at_risk, history.jobs)),
        named["accepted_jobs_are_accounted_for"],
        named["claims_are_settled_once"] + named["stale_claims_settle_nothing"],
        recovery(history),
        longest_pause(history),
        violations,
    )  # fmt: skip


def longest_pause(history: History) -> float:
    ends = sorted(each.end for job in history.jobs.values() for each in job.settlements if each.applied)
    return max((later - earlier for earlier, later in pairwise(ends)), default=0.0)


def recovery(history: History) -> float:
    """Return the longest time from the end of a fault to the next settlement, without another fault."""
    ends = sorted(each.end for job in history.jobs.values() for each in job.settlements if each.applied)
    worst = 0.0
    for end in (max(fault.until, fault.at) for fault in history.faults):
        index = bisect(ends, end)
        if index < len(ends) and not any(end < fault.at < ends[index] for fault in history.faults):
            worst = max(worst, ends[index] - end)
    return worst
