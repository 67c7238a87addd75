"""What an operator does: look at jobs, mend them, count them, pause queues, and keep small values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

from dayjob.broker.core import CHORE_BATCH, Core
from dayjob.engines.base import Diagnostic, JobQuery, Reschedule
from dayjob.errors import InvalidState
from dayjob.model.config import check_priority
from dayjob.model.durations import Duration, to_instant, to_micros
from dayjob.model.job import Enqueued, Job, JobState, NewJob, QueueStats, known_key
from dayjob.model.names import check_kv_key, check_kv_value, check_queue

_ALL = 2**31 - 1


class Operations(Core):
    """The part of ``Broker`` that reads and mends."""

    # Looking.

    async def get(self, id: str) -> Job | None:
        """The full record of a job, or None if there is none (any more)."""
        self._check_open()
        key = known_key(id)
        return None if key is None else await self._reading.submit(key)

    async def jobs(
        self,
        queue: str | None = None,
        state: JobState | str | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Job]:
        """Jobs in id order, which is the order of enqueuing; ``after`` is the id of the last one seen."""
        self._check_open()
        cursor = None if after is None else known_key(after)
        if check_limit(limit) == 0 or (after is not None and cursor is None):
            return []
        wanted = None if state is None else _to_state(state)
        query = JobQuery(min(limit, _ALL), queue, wanted, task, cursor, newest_first)
        return await self._storage.read(lambda: self._engine.find(query))

    async def dead_jobs(
        self, queue: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Dead jobs in id order."""
        return await self.jobs(queue, JobState.DEAD, after=after, limit=limit)

    async def latest_dead(
        self, queue: str | None = None, before: Job | None = None, limit: int = 100
    ) -> list[Job]:
        """Dead jobs, the latest failure first; ``before`` is the last one seen."""
        self._check_open()
        cursor = None if before is None else (before.finished_us or 0, before.key)
        number = min(check_limit(limit), _ALL)
        return (
            await self._storage.read(lambda: self._engine.find_dead(queue, cursor, number)) if limit else []
        )

    async def stats(self, queue: str) -> QueueStats:
        """How many jobs of the queue are in each state; zeros for an unknown queue."""
        self._check_open()
        check_queue(queue)
        return (await self._storage.read(lambda: self._engine.stats([queue]))).get(queue, QueueStats())

    async def all_stats(self) -> dict[str, QueueStats]:
        """``stats`` of every queue ever used, by name."""
        self._check_open()
        return await self._storage.read(self._engine.stats)

    async def queues(self) -> list[str]:
        """Every queue ever used, in name order."""
        return list(await self.all_stats())

    # Mending.

    async def requeue(self, id: str) -> bool:
        """Make a dead job pending again, with all its attempts; false if it isn't a dead job."""
        self._check_open()
        key = known_key(id)
        return key is not None and (await self._requeue([key]))[0]

    async def requeue_many(self, ids: Sequence[str], *, told: Callable[[int], None] | None = None) -> int:
        """``requeue`` of many, in commits of some; how many were dead jobs. ``told``: so far."""

        async def some(keys: list[bytes]) -> int:
            return sum(await self._requeue(keys))

        return await self._in_chunks(ids, some, told)

    async def purge_many(self, ids: Sequence[str], *, told: Callable[[int], None] | None = None) -> int:
        """Remove those of the jobs that are dead, in commits of some; how many. ``told``: so far."""

        async def some(keys: list[bytes]) -> int:
            return await self._write(lambda token: self._engine.purge(keys, token=token))

        return await self._in_chunks(ids, some, told)

    async def _requeue(self, keys: list[bytes]) -> list[bool]:
        return await self._write(lambda token: self._engine.requeue(keys, self._now(), token=token))

    async def _in_chunks(
        self,
        ids: Sequence[str],
        work: Callable[[list[bytes]], Awaitable[int]],
        told: Callable[[int], None] | None,
    ) -> int:
        self._check_open()
        keys = [key for key in map(known_key, dict.fromkeys(ids)) if key is not None]
        total = 0
        for start in range(0, len(keys), CHORE_BATCH):
            total += await work(keys[start : start + CHORE_BATCH])
            if told is not None:
                told(total)
        return total

    async def requeue_dead(self, queue: str, *, told: Callable[[int], None] | None = None) -> int:
        """Requeue the jobs of the queue that are dead now; how many. ``told`` is told so in between."""
        self._check_open()
        left = (await self.stats(queue)).dead
        total = 0
        while left > 0:
            some = min(left, CHORE_BATCH)
            done = await self._write(partial(self._engine.requeue_dead, queue, some, self._now()))
            if done == 0:
                break
            total += done
            left -= done
            if told is not None:
                told(total)
        return total

    async def purge_dead(self, queue: str | None = None, *, told: Callable[[int], None] | None = None) -> int:
        """Remove the jobs that are dead now, of one queue or of all; how many. ``told``: so far."""
        self._check_open()
        if queue is not None:
            left = (await self.stats(queue)).dead
        else:
            left = sum(stats.dead for stats in (await self.all_stats()).values())
        total = 0
        while left > 0:
            some = min(left, CHORE_BATCH)
            done = await self._write(partial(self._engine.purge_dead, queue, some))
            if done == 0:
                break
            total += done
            left -= done
            if told is not None:
                told(total)
        return total

    async def reschedule(self, id: str, run_at: datetime | None = None, priority: int | None = None) -> bool:
        """Change when, or with which priority, a waiting job runs; false if it isn't waiting."""
        self._check_open()
        if run_at is None and priority is None:
            raise ValueError("nothing to change: pass run_at, priority, or both")
        instant = None if run_at is None else to_instant(run_at, "run_at")
        if priority is not None:
            check_priority(priority, "priority")
        key = known_key(id)
        if key is None:
            return False
        change = Reschedule(key, instant, priority)
        return (await self._write(lambda token: self._engine.reschedule([change], self._now(), token=token)))[
            0
        ]

    async def rerun(self, id: str) -> Enqueued:
        """Enqueue a new job like a finished one that is still kept."""
        job = await self.get(id)
        if job is None or not job.state.finished:
            found = "there is no such job (any more)" if job is None else f"it is {job.state.value}"
            raise InvalidState(
                f"job {id!r} can't be rerun, because {found}: pass the id of a kept finished job"
            )
        new = NewJob(
            job.queue, job.payload, task=job.task, priority=job.priority, max_attempts=job.max_attempts,
            headers=job.headers, tenant=job.tenant,
        )  # fmt: skip
        return (await self._inserting.submit((self._validator.insertion(new),)))[0]

    async def sweep_done(self, retention: Duration) -> int:
        """Remove kept successes that finished that long ago or earlier, whatever their retention."""
        return await self._sweep_finished(JobState.DONE, retention)

    async def sweep_dead(self, retention: Duration) -> int:
        """Remove dead jobs that finished that long ago or earlier, whatever their retention."""
        return await self._sweep_finished(JobState.DEAD, retention)

    async def _sweep_finished(self, state: JobState, retention: Duration) -> int:
        self._check_open()
        age = to_micros(retention, "retention")
        total, cursor = 0, None
        while True:
            removed, cursor = await self._write(
                partial(self._engine.sweep_finished, state, age, cursor, CHORE_BATCH, self._now())
            )
            total += removed
            if cursor is None:
                return total

    async def diagnose(self) -> list[Diagnostic]:
        """What there is to say of the storage's settings; ``dayjob doctor`` shows it."""
        self._check_open()
        return await self._storage.read(self._engine.diagnose)

    # Queues and values.

    async def pause(self, queue: str) -> None:
        """Hand out no more jobs of the queue, in any process; it still accepts them."""
        self._check_open()
        check_queue(queue)
        await self._write(lambda token: self._engine.pause(queue, True, token=token))

    async def resume(self, queue: str) -> None:
        """Hand out the queue's jobs again."""
        self._check_open()
        check_queue(queue)
        await self._write(lambda token: self._engine.pause(queue, False, token=token))

    async def paused(self) -> set[str]:
        self._check_open()
        return await self._storage.read(self._engine.paused)

    async def kv_get(self, key: bytes) -> bytes | None:
        self._check_open()
        check_kv_key(key)
        return (await self._storage.read(lambda: self._engine.kv_get([key])))[0]

    async def kv_put(self, key: bytes, value: bytes) -> None:
        self._check_open()
        check_kv_key(key)
        check_kv_value(value)
        await self._write(lambda token: self._engine.kv_write([(key, value)], token=token))

    async def kv_delete(self, key: bytes) -> None:
        self._check_open()
        check_kv_key(key)
        await self._write(lambda token: self._engine.kv_write([(key, None)], token=token))


def check_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"limit={limit!r}: pass a whole number, 0 or more")
    return limit


def _to_state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError:
        known = ", ".join(repr(member.value) for member in JobState)
        raise ValueError(f"state={state!r}: pass one of {known}") from None
