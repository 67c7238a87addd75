"""The scenario of the demo: enqueue, cancel, kill a worker, wait until all jobs ended, audit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.cli.demo.audit import Accepted, Audit, audit, name_of, was_held_by
from dayjob.cli.demo.plan import PlannedJob, exports, plan
from dayjob.cli.demo.screen import Screen
from dayjob.cli.demo.summary import summarize
from dayjob.cli.demo.tasks import QUEUES, make_app
from dayjob.cli.demo.worker_processes import WorkerProcesses
from dayjob.engines.registry import without_password
from dayjob.errors import ConfigError
from dayjob.model.job import CancelOutcome, Job, JobState
from dayjob.runtime.clock import SYSTEM

WORKERS = 3
POLL_INTERVAL = 0.1
BATCH = 500


class TimeUp(Exception):
    """A step of the scenario took too long. The audit reports the unfinished jobs."""


async def run_scenario(url: str, jobs: int, logs: Path, screen: Screen) -> Audit:
    """Run the demo on a store that does not have its queues yet."""
    async with make_app(url) as app:
        await _check_usable(app.broker)
        async with WorkerProcesses(url, WORKERS, logs) as workers:
            return await Scenario(app, workers, screen, jobs).run()


async def _check_usable(broker: Broker) -> None:
    shown = without_password(broker.url)
    if not broker.capabilities.multi_process:
        raise ConfigError(
            f"{shown!r} allows one process only, and the demo needs several: use a sqlite:/// URL"
        )
    used = [queue for queue in await broker.queues() if queue in QUEUES]
    if used:
        raise ConfigError(
            f"{shown!r} already has the queue {used[0]!r}, and the demo must not mix with its jobs: "
            "use another store, or leave out --url"
        )


class Scenario:
    """The steps of the demo, and their shared state."""

    def __init__(self, app: App, workers: WorkerProcesses, screen: Screen, jobs: int) -> None:
        self._app = app
        self._broker = app.broker
        self._workers = workers
        self._screen = screen
        self._jobs = jobs
        self._deadline = SYSTEM.elapsed() + 60 + jobs / 50
        self._planned: dict[str, PlannedJob] = {}
        self._killed: str | None = None
        self._orphans: list[str] = []

    async def run(self) -> Audit:
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
            self._screen.print("The demo takes too long and is stopped.")
        return await self._audit()

    # The steps.

    async def _start_workers(self) -> list[str]:
        """Enqueue one long export for each worker: when all run, all workers have started."""
        ids = await self._accept(exports(self._app, WORKERS))
        for id in ids:
            await self._until(partial(self._is_running, id))
        names = ", ".join(f"{name} (pid {pid})" for name, pid in self._workers.pids().items())
        self._screen.print(f"started {WORKERS} worker processes: {names}")
        return ids

    async def _enqueue(self) -> None:
        planned = plan(self._app, self._jobs - len(self._planned))
        started = SYSTEM.elapsed()
        for start in range(0, len(planned), BATCH):
            await self._accept(planned[start : start + BATCH])
            await self._show_progress()
        seconds = SYSTEM.elapsed() - started
        queues = len({item.job.queue for item in planned})
        self._screen.print(f"enqueued {len(planned):,} jobs on {queues} queues in {seconds:.2f} s, durably")

    async def _cancel_waiting(self) -> None:
        ids = [id for id, planned in self._planned.items() if planned.cancel]
        outcomes = await asyncio.gather(*map(self._broker.cancel, ids))
        self._screen.print(f"cancelled {outcomes.count(CancelOutcome.REMOVED):,} reminders before their time")

    async def _kill_a_worker(self) -> None:
        """Kill the busiest worker. It holds at least its export, which runs until it is cancelled."""
        busy = Counter(name_of(job.worker) for job in await self._running())
        victim = max(self._workers.pids(), key=lambda name: busy[name])
        pid = self._workers.pids()[victim]
        await self._workers.kill(victim)
        started = SYSTEM.elapsed()
        self._killed = victim
        records = await self._records(self._planned)
        self._orphans = [job.id for job in records if job is not None and was_held_by(victim, job)]
        self._screen.print(f"killed {victim} (pid {pid}) with SIGKILL while it ran {len(self._orphans)} jobs")
        await self._until(partial(self._holds_no_claims, victim))
        self._screen.print(f"all of them were back in their queues after {SYSTEM.elapsed() - started:.2f} s")

    async def _cancel_running(self, ids: Sequence[str]) -> None:
        """Cancel those of the live workers first, to free a slot for the export of the killed one."""
        for id in sorted(ids, key=self._orphans.__contains__):
            await self._until(partial(self._is_running, id))
            started = SYSTEM.elapsed()
            outcome = await self._broker.cancel(id)
            waited = await self._broker.wait(id, timeout=10)
            state = waited.status if waited.job is None else waited.job.state.value
            subject = (
                "the killed worker's export, running again," if id in self._orphans else "a running export"
            )
            self._screen.print(
                f"cancel of {subject} {outcome.value}: {state} after {SYSTEM.elapsed() - started:.2f} s"
            )

    async def _audit(self) -> Audit:
        records = await self._records(self._planned)
        accepted = [
            Accepted(id, planned, record)
            for (id, planned), record in zip(self._planned.items(), records, strict=True)
        ]
        kept = [record for record in records if record is not None]
        for line in summarize(kept, self._killed, set(self._orphans)):
            self._screen.print(line)
        return audit(accepted, await self._broker.all_stats(), self._killed, self._orphans)

    # Queries.

    async def _accept(self, planned: Sequence[PlannedJob]) -> list[str]:
        enqueued = await self._broker.enqueue_many([item.job for item in planned])
        ids = [each.id for each in enqueued if each.created]
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

    async def _holds_no_claims(self, worker: str) -> bool:
        return not any(name_of(job.worker) == worker for job in await self._running())

    # Waiting.

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():
            self._workers.check()
            if SYSTEM.elapsed() > self._deadline:
                raise TimeUp
            await self._show_progress()
            await SYSTEM.wait(asyncio.Event(), POLL_INTERVAL)

    async def _have_ended(self, fraction: float) -> bool:
        ended, _ = await self._show_progress()
        return ended >= fraction * self._expected()

    async def _all_ended(self) -> bool:
        """Return whether only the jobs due tomorrow are left. Does not wait for missing jobs."""
        _, left = await self._show_progress()
        return left <= len(self._planned) - self._expected()

    def _expected(self) -> int:
        return sum(planned.expected.finished for planned in self._planned.values())

    async def _show_progress(self) -> tuple[int, int]:
        """Return the number of jobs that ended, and of those that are left."""
        stats = [found for queue, found in (await self._broker.all_stats()).items() if queue in QUEUES]
        dead = sum(queue.dead for queue in stats)
        waiting = sum(queue.scheduled for queue in stats)
        ended = sum(queue.done + queue.dead + queue.cancelled for queue in stats)
        left = sum(queue.pending + queue.scheduled + queue.running for queue in stats)
        self._screen.progress(ended, self._expected(), f"{waiting:,} scheduled, {dead:,} dead")
        return ended, left
