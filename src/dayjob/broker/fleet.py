"""What concerns the whole fleet: recurring jobs, the workers that are alive, and why a job is not running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from msgspec.structs import replace

from dayjob.broker.history import Sample
from dayjob.broker.operations import Operations
from dayjob.broker.worker_registry import Member
from dayjob.errors import InvalidState
from dayjob.model.codec import encode
from dayjob.model.explanation import COUNTED_AHEAD, Explanation, Situation, explain
from dayjob.model.job import Enqueued, JobState, NewJob, QueueStats, known_key
from dayjob.model.recurring import Recurring, Schedule, to_schedule
from dayjob.model.worker_info import WorkerInfo


class Fleet(Operations):
    """The part of ``Broker`` that sees all processes."""

    # Recurring jobs.

    async def schedule(self, recurring: Recurring) -> Schedule:
        """Store a recurring job, in place of any with the same id; when it fired last is kept."""
        self._check_open()
        fresh = self._to_schedule(recurring, None)
        stored = await self._schedules.change(recurring.id, fresh.replacing)
        assert stored is not None
        return stored

    async def declare(self, app: str, recurring: Sequence[Recurring]) -> None:
        """Store the recurring jobs that an app's code declares, all at once."""
        self._check_open()
        await self._schedules.declare([self._to_schedule(each, app) for each in recurring])

    async def unschedule(self, id: str) -> bool:
        """Remove a recurring job; false if there is none. Jobs that it has enqueued stay."""
        self._check_open()
        return await self._schedules.remove(id)

    async def schedules(self) -> list[Schedule]:
        """All recurring jobs by id, with when they fired last (``last_at``) and will next (``next_at``)."""
        self._check_open()
        return await self._schedules.all()

    async def trigger(self, id: str) -> Enqueued:
        """Enqueue a recurring job now, paused or not; its due times stay as they are."""
        for schedule in await self.schedules():
            if schedule.id == id:
                return (await self._enqueue((self._validator.insertion(schedule.new_job(None)),)))[0]
        raise InvalidState(f"there is no schedule {id!r} to trigger: schedules() lists those there are")

    async def pause_schedule(self, id: str) -> bool:
        """Fire a recurring job no more, until it is resumed; false if there is none."""
        self._check_open()
        return (
            await self._schedules.change(id, lambda old, now: old and replace(old, paused=True)) is not None
        )

    async def resume_schedule(self, id: str) -> bool:
        """Fire a recurring job again, from its next due time on; false if there is none."""

        def resumed(old: Schedule | None, now: int) -> Schedule | None:
            return old.resumed(now) if old is not None and old.paused else old

        self._check_open()
        return await self._schedules.change(id, resumed) is not None

    def _to_schedule(self, recurring: Recurring, app: str | None) -> Schedule:
        if not isinstance(recurring, Recurring):
            raise TypeError(f"{recurring!r} is a {type(recurring).__name__}: pass a Recurring")
        template = _template(recurring)
        self._validator.insertion(template)
        schedule = to_schedule(recurring, template, app)
        self._validator.insertion(schedule.new_job(1))  # It has headers of its own besides.
        return schedule

    # Workers.

    async def workers(self) -> list[WorkerInfo]:
        """The workers that are alive, on any machine."""
        self._check_open()
        _, live = await self._worker_registry.live()
        return [seen.info() for seen in live]

    async def register(self, member: Member) -> Member:
        """Put a worker on the roster; it has to ``beat`` in time from now on."""
        self._check_open()
        return await self._worker_registry.join(member)

    async def beat(self, member: Member, running: int) -> Member | None:
        """Tell that a worker lives; None if it has been declared dead."""
        self._check_open()
        return await self._worker_registry.beat(member, running)

    async def deregister(self, member: Member) -> None:
        """Take a worker off the roster."""
        self._check_open()
        await self._worker_registry.leave(member)

    async def history(self, hours: int = 1) -> tuple[int, list[Sample]]:
        """The time now, and the counters of each minute of the last hours in which they changed."""
        self._check_open()
        return await self._history.read(hours)

    async def first_due(self, stats: Mapping[str, QueueStats], patience: float = inf) -> dict[str, int]:
        """When the first pending job of each queue was due, for the hundred queues with the most of them.

        After ``patience`` seconds it asks for no more queues.
        """
        self._check_open()
        return await self._history.first_due(stats, patience)

    # Why.

    async def explain(self, id: str) -> Explanation:
        """Why a job is not running, or where it is."""
        self._check_open()
        key = known_key(id)
        job = None if key is None else await self._reading.submit(key)
        now, live = await self._worker_registry.live()
        paused, ahead = False, 0
        if job is not None and not job.state.finished:
            paused = job.queue in await self.paused()
            if job.state is JobState.PENDING:
                ahead = await self._storage.read(partial(self._engine.position, job.key, COUNTED_AHEAD))
        return explain(id, job, Situation(now, paused, ahead, [seen.info() for seen in live]))


def _template(recurring: Recurring) -> NewJob:
    """The job that is enqueued at each due time."""
    options: dict[str, Any] = {
        name: value
        for name in ("queue", "priority", "max_attempts", "headers", "tenant")
        if (value := getattr(recurring, name)) is not None
    }
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
