"""The recurring jobs of a storage. Each is a document; firing writes it and its jobs in one commit.

The document is compared and set, so each due time fires exactly once, in one process, and a crash leaves no
partial write. A schedule that can't fire stays due and stores the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dayjob.broker.batcher import insertions_weight
from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.broker.validation import Validator
from dayjob.broker.worker_registry import WorkerRegistry
from dayjob.engines.base import BATCH_BYTES, Contended, DocumentWrite, Insertion
from dayjob.model.codec import UNDECODABLE, encode
from dayjob.model.durations import SECOND
from dayjob.model.job import NewJob
from dayjob.model.names import KEY_BYTES, check_name
from dayjob.model.recurring import Recurring, Schedule, job_options, to_schedule
from dayjob.runtime.clock import Clock
from dayjob.runtime.ids import derived_key

_log = logging.getLogger("dayjob.schedules")

KIND = "schedule"

IN_A_COMMIT = 1000
"""Approximate number of jobs enqueued in one commit."""

LONGEST_WAIT = 5 * SECOND
"""The longest time until the schedules are read without a signal, in case one was lost."""

_TRY_AGAIN = SECOND

UNDECLARED_FOR = 60.0
"""Seconds after which a schedule that the code of no live worker declares any more is removed."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Schedule).decode

Change = Callable[[Schedule | None, int], Schedule | None]
"""Returns the schedule to store instead of the old one. The old one is None if it can't be decoded."""


class LiveWorkers(Struct, frozen=True):
    """The tasks, apps and declared schedules of the live workers."""

    tasks: set[str]
    apps: set[str]
    declared: set[tuple[str | None, str]]

    def have_declared(self, schedule: Schedule) -> bool:
        """Whether the code still declares it. True if no worker of its app is alive: it is unknown then."""
        return (
            schedule.app is None
            or schedule.app not in self.apps
            or (schedule.app, schedule.id) in self.declared
        )

    def can_run(self, schedule: Schedule) -> bool:
        """Whether a worker can run its jobs. True without workers: other code may claim them then."""
        return not schedule.task or not self.apps or schedule.task in self.tasks


class Stored(Struct, frozen=True):
    value: bytes
    schedule: Schedule | None
    """None if it can't be decoded."""


class Schedules:
    """Stores, changes and fires them."""

    def __init__(
        self,
        storage: RetryingStorage,
        validator: Validator,
        worker_registry: WorkerRegistry,
        clock: Clock,
        on_enqueued: Callable[[Sequence[Insertion]], None],
    ) -> None:
        """``on_enqueued`` gets the jobs of due times, after their commit."""
        self._storage = storage
        self._on_enqueued = on_enqueued
        self._validator = validator
        self._worker_registry = worker_registry
        self._clock = clock
        self._undeclared: dict[str, float] = {}
        self._reported: dict[str, str | None] = {}
        self._fired_at: float = inf
        """The engine's time of the last call of ``fire``."""
        self._alone: set[str] = set()
        """The schedules that fire in a commit of their own, because their dedup keys may be held."""

    async def all(self) -> list[Schedule]:
        _, stored = await self._read()
        return [each.schedule for each in stored.values() if each.schedule is not None]

    async def change(self, id: str, change: Change) -> Schedule | None:
        """Replace the schedule with this id by the result of the function. Return that result."""
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
        """Remove the schedule with this id, readable or not. False if there is none."""
        check_name(id, "schedule id", KEY_BYTES)
        while True:
            _, stored = await self._read()
            old = stored.get(id)
            if old is None:
                return False
            write = DocumentWrite(KIND, id, old.value, None)
            if await self._storage.compare_and_set([write], announce=True):
                return True

    async def put(self, recurring: Recurring) -> Schedule:
        """Store a recurring job, in place of any with the same id."""
        new = self._to_schedule(recurring, None)
        stored = await self.change(new.id, new.replacing)
        assert stored is not None
        return stored

    async def pause(self, id: str) -> bool:
        return await self.change(id, lambda old, now: old and replace(old, paused=True)) is not None

    async def resume(self, id: str) -> bool:
        def resumed(old: Schedule | None, now: int) -> Schedule | None:
            return old.resumed(now) if old is not None and old.paused else old

        return await self.change(id, resumed) is not None

    async def declare(self, app: str, recurring: Sequence[Recurring]) -> None:
        """Store the schedules that an app's code declares, in one commit. Equal ones stay as they are."""
        schedules = [self._to_schedule(each, app) for each in recurring]
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
        """Enqueue the jobs that are due. Return microseconds until the next call.

        All schedules fire in one commit. If it is ``Contended``, those with dedup keys fire alone, one after
        the other, so that a key that another client holds delays no other schedule.
        """
        tried: set[str] = set()
        while True:
            now, stored = await self._read()
            set_back = now < self._fired_at  # At the first call, the clock may have been set back before.
            due = {
                id: each
                for id, each in stored.items()
                if each.schedule is not None
                and (set_back or each.schedule.app is not None or _is_due(each.schedule, now))
            }
            self._alone &= due.keys()
            if due:
                workers = await self._live_workers()
                together = {id: each for id, each in due.items() if id not in self._alone}
                writes, jobs = self._plan(together, workers, now, set_back)
                if writes:
                    await self._fire_together(together, writes, jobs)
                    continue  # Another process may have changed a document: read again.
                alone = [id for id in due if id in self._alone and id not in tried]
                for id in alone:
                    tried.add(id)
                    if not await self._fire_alone(id, due[id], workers, now):
                        break  # The commit took time, so other schedules may be due.
                if alone:
                    continue
            self._fired_at = now
            return self._wait(stored, now)

    async def _fire_together(
        self, due: Mapping[str, Stored], writes: list[DocumentWrite], jobs: list[Insertion]
    ) -> None:
        try:
            await self._write(writes, jobs)
        except Contended:
            keyed = {write.name for write in writes if _dedup_key(due[write.name]) is not None}
            if not keyed:
                raise
            self._alone |= keyed

    async def _write(self, writes: list[DocumentWrite], jobs: list[Insertion]) -> None:
        if await self._storage.compare_and_set(writes, jobs) and jobs:
            self._on_enqueued(jobs)

    async def _fire_alone(self, id: str, stored: Stored, workers: LiveWorkers, now: int) -> bool:
        """Fire a schedule in its own commit. If its dedup key is held, store the problem and return False."""
        writes, jobs = self._plan({id: stored}, workers, now)
        if writes:
            try:
                await self._write(writes, jobs)
            except Contended:
                assert stored.schedule is not None
                problem = f"an open transaction of another client holds its dedup key {_dedup_key(stored)!r}"
                held = replace(self._failed(stored.schedule, problem), held_us=stored.schedule.held_us or now)
                if held != stored.schedule:
                    write = DocumentWrite(KIND, id, stored.value, _encode(held))
                    await self._storage.compare_and_set([write])
                return False
        self._alone.discard(id)
        self._reported.pop(id, None)
        return True

    def _plan(
        self, due: dict[str, Stored], workers: LiveWorkers, now: int, set_back: bool = False
    ) -> tuple[list[DocumentWrite], list[Insertion]]:
        writes: list[DocumentWrite] = []
        jobs: list[Insertion] = []
        size = 0
        for id, each in due.items():
            schedule = each.schedule
            assert schedule is not None
            if not workers.have_declared(schedule):
                if self._is_orphan(id):
                    _log.info(
                        "schedule %r is removed: the code of app %r no longer declares it", id, schedule.app
                    )
                    writes.append(DocumentWrite(KIND, id, each.value, None))
                continue
            self._undeclared.pop(id, None)
            if _is_due(schedule, now):
                after, new = self._fired(schedule, workers, now)
                jobs += new
                size += insertions_weight(new)[1]
            else:
                after = self._realigned(schedule, now) if set_back else schedule
            if after != schedule:
                writes.append(DocumentWrite(KIND, id, each.value, _encode(after)))
            if len(jobs) >= IN_A_COMMIT or size >= BATCH_BYTES:
                break
        return writes, jobs

    def _is_orphan(self, id: str) -> bool:
        elapsed = self._clock.elapsed()
        return elapsed - self._undeclared.setdefault(id, elapsed) >= UNDECLARED_FOR

    def _fired(self, schedule: Schedule, workers: LiveWorkers, now: int) -> tuple[Schedule, list[Insertion]]:
        """Return the schedule as it is after firing, with its jobs; or with the reason why it can't fire."""
        if not workers.can_run(schedule):
            return self._failed(schedule, f"no live worker has the task {schedule.task!r}"), []
        try:
            due = schedule.due(now)
            jobs = [self._job(schedule, time) for time in due.times]
        except Exception as error:
            return self._failed(schedule, f"{type(error).__name__}: {error}"), []
        if due.skipped:
            _log.warning(
                "schedule %r: %d due times were missed and are left out (missed=%r)",
                schedule.id, due.skipped, schedule.missed,
            )  # fmt: skip
        if schedule.held_us is None:
            self._reported.pop(schedule.id, None)
        return due.schedule, jobs

    def _realigned(self, schedule: Schedule, now: int) -> Schedule:
        try:
            after = schedule.realigned(now)
        except Exception as error:
            return self._failed(schedule, f"{type(error).__name__}: {error}")
        if after is not schedule:
            _log.warning(
                "schedule %r: the clock was set back, so its next due time is no longer %s but %s",
                schedule.id, schedule.next_at, after.next_at,
            )  # fmt: skip
        return after

    def _failed(self, schedule: Schedule, problem: str) -> Schedule:
        if self._reported.get(schedule.id) != problem:
            self._reported[schedule.id] = problem
            _log.error("schedule %r is due and does not fire; it is tried again: %s", schedule.id, problem)
        return replace(schedule, problem=problem, held_us=None)

    def _job(self, schedule: Schedule, due: int) -> Insertion:
        insertion = self._validator.insertion(schedule.new_job(due))
        insertion.key = derived_key(due // 1000, f"{schedule.id}\0{due}".encode())
        return insertion

    def _to_schedule(self, recurring: Recurring, app: str | None) -> Schedule:
        if not isinstance(recurring, Recurring):
            raise TypeError(f"{recurring!r} is a {type(recurring).__name__}: pass a Recurring")
        template = _template(recurring)
        self._validator.insertion(template)
        schedule = to_schedule(recurring, template, app)
        self._validator.insertion(schedule.new_job(1))  # With the headers that a schedule adds.
        return schedule

    async def _live_workers(self) -> LiveWorkers:
        _, live = await self._worker_registry.live()
        members = [seen.member for seen in live]
        return LiveWorkers(
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
        for document in documents:
            try:
                schedule = _decode(document.value)
            except UNDECODABLE as error:
                schedule = None
                if self._reported.get(document.name) != "unreadable":
                    self._reported[document.name] = "unreadable"
                    _log.error(
                        "schedule %r can't be decoded: store it again or remove it: %s", document.name, error
                    )
            stored[document.name] = Stored(document.value, schedule)
        return now, stored


def _is_due(schedule: Schedule, now: int) -> bool:
    return not schedule.paused and schedule.next_us is not None and schedule.next_us <= now


def _dedup_key(stored: Stored) -> str | None:
    return None if stored.schedule is None else stored.schedule.dedup_key


def _template(recurring: Recurring) -> NewJob:
    """Return the job that is enqueued at each due time."""
    options = job_options(recurring)
    if recurring.queue is not None:
        options["queue"] = recurring.queue
    task, args = recurring.task, recurring.args
    if not isinstance(task, str):
        using = task.using(**options)
        bound = using.bind(**args) if isinstance(args, Mapping) else using.bind(*args)
        return bound.new_job()
    payload = b"" if recurring.payload is None else recurring.payload
    if task:
        try:
            payload = encode(dict(args))
        except (NotImplementedError, TypeError) as error:
            raise TypeError(f"Recurring({recurring.id!r}): args={args!r}: {error}") from None
    options.setdefault("queue", "default")
    return NewJob(payload=payload, task=task, **options)
