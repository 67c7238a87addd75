"""The recurring jobs of a storage: each is a note, and firing writes the note and its jobs in one commit.

So a due time is fired exactly once, however many try, and there is no moment in between for a crash. A
schedule that can't fire stays due and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dayjob.broker.storage import Storage
from dayjob.broker.validation import Validator
from dayjob.broker.worker_registry import WorkerRegistry
from dayjob.engines.base import DocumentWrite, Insertion
from dayjob.model.durations import SECOND
from dayjob.model.names import KEY_BYTES, check_name
from dayjob.model.recurring import Schedule
from dayjob.runtime.clock import Clock
from dayjob.runtime.ids import derived_key

_log = logging.getLogger("dayjob.schedules")

KIND = "schedule"

IN_A_COMMIT = 1000
"""Jobs that are fired in one commit, about."""

LONGEST_WAIT = 5 * SECOND
"""How soon to look again though nothing is due, for what nobody told us of."""

_TRY_AGAIN = SECOND

UNDECLARED_FOR = 60.0
"""Seconds after which a schedule that no live worker's code declares any more is removed."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Schedule).decode

Change = Callable[[Schedule | None, int], Schedule | None]
"""What to store in the place of what is there, which is None as well if it can't be read."""


class Crew(Struct, frozen=True):
    """What the live workers stand for."""

    tasks: set[str]
    apps: set[str]
    declared: set[tuple[str | None, str]]

    def declares(self, schedule: Schedule) -> bool:
        """Whether the code still names it; while no worker of its app is alive, nobody can tell."""
        return (
            schedule.app is None
            or schedule.app not in self.apps
            or (schedule.app, schedule.id) in self.declared
        )

    def knows(self, schedule: Schedule) -> bool:
        """Whether somebody can run its jobs. Without any worker on the roster, claims are made by hand."""
        return not schedule.task or not self.apps or schedule.task in self.tasks


class Stored(Struct, frozen=True):
    value: bytes
    schedule: Schedule | None
    """None if it can't be read."""


class Schedules:
    """Keeps, changes and fires them."""

    def __init__(
        self,
        storage: Storage,
        validator: Validator,
        worker_registry: WorkerRegistry,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._validator = validator
        self._worker_registry = worker_registry
        self._clock = clock
        self._undeclared: dict[str, float] = {}
        self._reported: dict[str, str | None] = {}

    async def all(self) -> list[Schedule]:
        _, stored = await self._read()
        return [each.schedule for each in stored.values() if each.schedule is not None]

    async def change(self, id: str, change: Change) -> Schedule | None:
        """Replace what is stored under the id by what the function makes of it, which is returned."""
        check_name(id, "schedule id", KEY_BYTES)
        while True:
            now, stored = await self._read()
            old = stored.get(id)
            before = None if old is None else old.schedule
            after = change(before, now)
            if after is None or after == before:
                return after
            write = DocumentWrite(KIND, id, None if old is None else old.value, _encode(after))
            if await self._storage.compare_and_set([write], announce=True):
                return after

    async def remove(self, id: str) -> bool:
        """Remove what is stored under the id, readable or not; false if there is nothing."""
        check_name(id, "schedule id", KEY_BYTES)
        while True:
            _, stored = await self._read()
            old = stored.get(id)
            if old is None:
                return False
            write = DocumentWrite(KIND, id, old.value, None)
            if await self._storage.compare_and_set([write], announce=True):
                return True

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        """Store what an app's code declares, in one commit; what is there as declared stays as it is."""
        while True:
            now, stored = await self._read()
            writes = []
            for schedule in schedules:
                old = stored.get(schedule.id)
                after = schedule.replacing(None if old is None else old.schedule, now)
                if old is None or after != old.schedule:
                    expected = None if old is None else old.value
                    writes.append(DocumentWrite(KIND, schedule.id, expected, _encode(after)))
            if not writes or await self._storage.compare_and_set(writes, announce=True):
                return

    async def fire(self) -> int:
        """Enqueue what is due; microseconds until it is to be called again."""
        while True:
            now, stored = await self._read()
            due = {
                id: each
                for id, each in stored.items()
                if each.schedule is not None
                and (each.schedule.app is not None or _is_due(each.schedule, now))
            }
            if due:
                crew = await self._crew()
                writes, jobs = self._plan(due, crew, now)
                if writes:
                    await self._storage.compare_and_set(writes, jobs)
                    continue  # Written or overtaken by somebody: look again.
            return self._wait(stored, now)

    def _plan(
        self, due: dict[str, Stored], crew: Crew, now: int
    ) -> tuple[list[DocumentWrite], list[Insertion]]:
        writes: list[DocumentWrite] = []
        jobs: list[Insertion] = []
        for id, each in due.items():
            schedule = each.schedule
            assert schedule is not None
            if not crew.declares(schedule):
                if self._is_orphan(id):
                    _log.info(
                        "schedule %r is removed: the code of app %r no longer names it", id, schedule.app
                    )
                    writes.append(DocumentWrite(KIND, id, each.value, None))
                continue
            self._undeclared.pop(id, None)
            if not _is_due(schedule, now):
                continue
            after, new = self._fired(schedule, crew, now)
            jobs += new
            if after != schedule:
                writes.append(DocumentWrite(KIND, id, each.value, _encode(after)))
            if len(jobs) >= IN_A_COMMIT:
                break
        return writes, jobs

    def _is_orphan(self, id: str) -> bool:
        elapsed = self._clock.elapsed()
        return elapsed - self._undeclared.setdefault(id, elapsed) >= UNDECLARED_FOR

    def _fired(self, schedule: Schedule, crew: Crew, now: int) -> tuple[Schedule, list[Insertion]]:
        """The schedule after it fired for what is due, and the jobs; or with the reason why it can't."""
        if not crew.knows(schedule):
            return self._failed(schedule, f"no live worker knows the task {schedule.task!r}"), []
        try:
            due = schedule.due(now)
            jobs = [self._job(schedule, time) for time in due.times]
        except Exception as error:
            return self._failed(schedule, f"it is refused here: {type(error).__name__}: {error}"), []
        if due.skipped:
            _log.warning(
                "schedule %r: %d due times were missed and are left out (missed=%r)",
                schedule.id, due.skipped, schedule.missed,
            )  # fmt: skip
        self._reported.pop(schedule.id, None)
        return due.schedule, jobs

    def _failed(self, schedule: Schedule, problem: str) -> Schedule:
        if self._reported.get(schedule.id) != problem:
            self._reported[schedule.id] = problem
            _log.error("schedule %r is due and does not fire, trying again: %s", schedule.id, problem)
        return replace(schedule, problem=problem)

    def _job(self, schedule: Schedule, due: int) -> Insertion:
        insertion = self._validator.insertion(schedule.new_job(due))
        insertion.key = derived_key(due // 1000, f"{schedule.id}\0{due}".encode())
        return insertion

    async def _crew(self) -> Crew:
        _, live = await self._worker_registry.live()
        members = [seen.member for seen in live]
        return Crew(
            {task for member in members for task in member.tasks},
            {member.app for member in members},
            {(member.app, id) for member in members for id in member.schedules},
        )

    def _wait(self, stored: dict[str, Stored], now: int) -> int:
        times = [
            each.schedule.next_us
            for each in stored.values()
            if each.schedule is not None and not each.schedule.paused and each.schedule.next_us is not None
        ]
        wait = min(max(time - now, 0) or _TRY_AGAIN for time in times) if times else LONGEST_WAIT
        return min(wait, LONGEST_WAIT)

    async def _read(self) -> tuple[int, dict[str, Stored]]:
        now, documents = await self._storage.documents(KIND)
        stored = {}
        for note in documents:
            try:
                schedule = _decode(note.value)
            except msgspec.MsgspecError as error:
                schedule = None
                if self._reported.get(note.name) != "unreadable":
                    self._reported[note.name] = "unreadable"
                    _log.error("schedule %r can't be read: put or remove it anew: %s", note.name, error)
            stored[note.name] = Stored(note.value, schedule)
        return now, stored


def _is_due(schedule: Schedule, now: int) -> bool:
    return not schedule.paused and schedule.next_us is not None and schedule.next_us <= now
