"""The demo, act by act: enqueue, cancel, kill a worker, wait until all has ended, reckon."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.cli.demo_crew import Crew
from dayjob.cli.demo_jobs import Planned, exports, plan
from dayjob.cli.demo_observations import observations
from dayjob.cli.demo_reckoning import Accepted, Reckoning, name_of, reckon, was_held_by
from dayjob.cli.demo_screen import Screen
from dayjob.cli.demo_tasks import QUEUES, make_app
from dayjob.engines.registry import without_password
from dayjob.errors import ConfigError
from dayjob.model.job import CancelOutcome, Job, JobState
from dayjob.runtime.clock import SYSTEM

WORKERS = 3
TICK = 0.1
BATCH = 500


class TimeUp(Exception):
    """What should have happened did not; the reckoning will tell what it was."""


async def play(url: str, jobs: int, logs: Path, screen: Screen) -> Reckoning:
    """The whole demo on a store that has none of its queues yet."""
    async with make_app(url) as app:
        await _check_usable(app.broker)
        async with Crew(url, WORKERS, logs) as crew:
            return await Story(app, crew, screen, jobs).tell()


async def _check_usable(broker: Broker) -> None:
    shown = without_password(broker.url)
    if not broker.capabilities.multi_process:
        raise ConfigError(f"{shown!r} is for one process and the demo has several: use a sqlite:/// URL")
    used = [queue for queue in await broker.queues() if queue in QUEUES]
    if used:
        raise ConfigError(
            f"{shown!r} holds the queue {used[0]!r} already, so the demo's sums would not be "
            "its own: name a store without it, or leave --url out"
        )


class Story:
    """Holds what one act leaves for the next."""

    def __init__(self, app: App, crew: Crew, screen: Screen, jobs: int) -> None:
        self._app = app
        self._broker = app.broker
        self._crew = crew
        self._screen = screen
        self._jobs = jobs
        self._deadline = SYSTEM.elapsed() + 60 + jobs / 50
        self._planned: dict[str, Planned] = {}
        self._killed: str | None = None
        self._orphans: list[str] = []

    async def tell(self) -> Reckoning:
        try:
            long_runs = await self._start_workers()
            await self._enqueue()
            await self._cancel_waiting()
            await self._until(lambda: self._have_ended(0.3))
            await self._kill_a_worker()
            await self._until(lambda: self._have_ended(0.6))
            await self._cancel_running(long_runs)
            await self._until(self._all_ended)
        except TimeUp:
            self._screen.say("Giving up: this takes too long.")
        return await self._reckon()

    # The acts.

    async def _start_workers(self) -> list[str]:
        """Each worker takes one of the long exports, so all are up once all of these run."""
        ids = await self._accept(exports(self._app, WORKERS))
        for id in ids:
            await self._until(partial(self._is_running, id))
        names = ", ".join(f"{name} (pid {pid})" for name, pid in self._crew.pids().items())
        self._screen.say(f"started {WORKERS} worker processes: {names}")
        return ids

    async def _enqueue(self) -> None:
        planned = plan(self._app, self._jobs - len(self._planned))
        begun = SYSTEM.elapsed()
        for start in range(0, len(planned), BATCH):
            await self._accept(planned[start : start + BATCH])
            await self._show_progress()
        seconds = SYSTEM.elapsed() - begun
        queues = len({item.job.queue for item in planned})
        self._screen.say(f"enqueued {len(planned):,} jobs on {queues} queues in {seconds:.2f} s, durably")

    async def _cancel_waiting(self) -> None:
        ids = [id for id, planned in self._planned.items() if planned.cancel]
        outcomes = await asyncio.gather(*map(self._broker.cancel, ids))
        self._screen.say(f"cancelled {outcomes.count(CancelOutcome.REMOVED):,} reminders before their time")

    async def _kill_a_worker(self) -> None:
        """The busiest one. It has at least its export in hand, which does not end before it is cancelled."""
        busy = Counter(name_of(job.worker) for job in await self._running())
        victim = max(self._crew.pids(), key=lambda name: busy[name])
        pid = self._crew.pids()[victim]
        await self._crew.kill(victim)
        begun = SYSTEM.elapsed()
        self._killed = victim
        records = await self._records(self._planned)
        self._orphans = [job.id for job in records if job is not None and was_held_by(victim, job)]
        self._screen.say(
            f"killed {victim} (pid {pid}) with SIGKILL in the middle of its work, with "
            f"{len(self._orphans)} jobs in hand"
        )
        await self._until(partial(self._has_nothing_in_hand, victim))
        self._screen.say(f"all of them were back in their queues {SYSTEM.elapsed() - begun:.2f} s later")

    async def _cancel_running(self, ids: Sequence[str]) -> None:
        """Those of the living workers first: that makes room for the killed worker's one to run again."""
        for id in sorted(ids, key=self._orphans.__contains__):
            await self._until(partial(self._is_running, id))
            begun = SYSTEM.elapsed()
            outcome = await self._broker.cancel(id)
            waited = await self._broker.wait(id, timeout=10)
            state = waited.status if waited.job is None else waited.job.state.value
            what = "the killed worker's export, running again," if id in self._orphans else "a running export"
            self._screen.say(
                f"cancel of {what} {outcome.value}: its token fired in the worker, "
                f"{state} {SYSTEM.elapsed() - begun:.2f} s later"
            )

    async def _reckon(self) -> Reckoning:
        records = await self._records(self._planned)
        accepted = [
            Accepted(id, planned, record)
            for (id, planned), record in zip(self._planned.items(), records, strict=True)
        ]
        kept = [record for record in records if record is not None]
        for line in observations(kept, self._killed, set(self._orphans)):
            self._screen.say(line)
        return reckon(accepted, await self._broker.all_stats(), self._killed, self._orphans)

    # Asking the broker.

    async def _accept(self, planned: Sequence[Planned]) -> list[str]:
        enqueued = await self._broker.enqueue_many([item.job for item in planned])
        ids = [answer.id for answer in enqueued if answer.created]
        self._planned.update(zip(ids, planned, strict=True))
        return ids

    async def _records(self, ids: Iterable[str]) -> list[Job | None]:
        return await asyncio.gather(*map(self._broker.get, ids))

    async def _running(self) -> list[Job]:
        found = await asyncio.gather(*(self._broker.jobs(queue, JobState.RUNNING) for queue in QUEUES))
        return [job for jobs in found for job in jobs]

    async def _is_running(self, id: str) -> bool:
        job = await self._broker.get(id)
        return job is not None and job.state is JobState.RUNNING

    async def _has_nothing_in_hand(self, worker: str) -> bool:
        return not any(name_of(job.worker) == worker for job in await self._running())

    # Waiting.

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():
            self._crew.check()
            if SYSTEM.elapsed() > self._deadline:
                raise TimeUp
            await self._show_progress()
            await SYSTEM.wait(asyncio.Event(), TICK)

    async def _have_ended(self, fraction: float) -> bool:
        ended, _ = await self._show_progress()
        return ended >= fraction * self._expected()

    async def _all_ended(self) -> bool:
        """Nothing is left but what is for tomorrow. What is missing is no reason to wait."""
        _, left = await self._show_progress()
        return left <= len(self._planned) - self._expected()

    def _expected(self) -> int:
        return sum(planned.end.finished for planned in self._planned.values())

    async def _show_progress(self) -> tuple[int, int]:
        """How many jobs have ended and how many are left."""
        stats = [found for queue, found in (await self._broker.all_stats()).items() if queue in QUEUES]
        dead = sum(queue.dead for queue in stats)
        waiting = sum(queue.scheduled for queue in stats)
        ended = sum(queue.done + queue.dead + queue.cancelled for queue in stats)
        left = sum(queue.pending + queue.scheduled + queue.running for queue in stats)
        self._screen.progress(ended, self._expected(), f"{waiting:,} scheduled, {dead:,} dead")
        return ended, left
