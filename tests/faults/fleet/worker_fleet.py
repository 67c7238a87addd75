"""The worker processes on one storage, and helpers to observe them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from signal import SIGCONT
from typing import Any

import msgspec

from dayjob import Broker, BrokerConfig, Job, JobState
from dayjob.broker.leader_election import KIND, Holder
from tests.faults.fleet.roles import build, work
from tests.support.bound import BOUND
from tests.support.processes import Child, Spawn, pause, until

READER = BrokerConfig(duties=False)


class WorkerProcess:
    """A worker process."""

    def __init__(self, child: Child, id: str) -> None:
        self.child = child
        self.id = id
        """The worker id at the start. It changes if the worker is declared dead."""

    @property
    def pid(self) -> int:
        return self.child.pid

    async def kill(self) -> None:
        await self.child.kill()


class WorkerFleet:
    """Use it inside ``async with fleet.broker``. That broker runs no duties."""

    def __init__(self, spawn: Spawn, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.broker = Broker(url, config=READER)
        self.event_log = folder / "events.log"
        self._spawn = spawn
        self._names = (f"worker{number}" for number in count(1))

    # Workers.

    async def start(self, **options: Any) -> WorkerProcess:
        """Start a worker and wait until it runs."""
        (member,) = await self.start_many(1, **options)
        return member

    async def start_many(self, number: int, *, foreign: bool = False, **options: Any) -> list[WorkerProcess]:
        """Start workers concurrently. Each ``foreign`` one looks like a worker on its own machine."""
        children = []
        for _ in range(number):
            name = next(self._names)
            each = {"name": name, **({"machine": f"machine of {name}"} if foreign else {}), **options}
            children.append(await self._spawn(work, self.url, str(self.event_log), each))
        return [WorkerProcess(child, await child.receive()) for child in children]

    async def run_supervised(self, **options: Any) -> int:
        """Run one worker, and restart it when it dies, until all jobs are finished. Return its deaths."""
        idle = asyncio.ensure_future(self.until_idle())
        deaths = 0
        while True:
            child = await self._spawn(work, self.url, str(self.event_log), options)
            ended = asyncio.ensure_future(child.wait())
            await asyncio.wait({idle, ended}, return_when=asyncio.FIRST_COMPLETED)
            if idle.done():
                await child.kill()
                idle.result()
                return deaths
            assert ended.result() == 9
            deaths += 1

    async def leader(self, members: Sequence[WorkerProcess]) -> WorkerProcess:
        """Wait until one of the workers leads, and return it."""
        found: list[WorkerProcess] = []

        async def leads() -> bool:
            _, documents = await self.broker._engine.documents(KIND)
            holders = [msgspec.msgpack.decode(document.value, type=Holder) for document in documents]
            found.extend(member for member in members for holder in holders if holder.pid == member.pid)
            return bool(found)

        await until(leads, BOUND)
        return found[0]

    async def freeze(self, member: WorkerProcess) -> None:
        """Stop the process with SIGSTOP; on SQLite not during a write, which would block all others."""
        while True:
            await member.child.freeze()
            if not self.url.startswith("sqlite:") or self._can_be_written():
                return
            member.child.signal(SIGCONT)
            await pause(0.05)

    def _can_be_written(self) -> bool:
        path = self.url.removeprefix("sqlite:///").partition("?")[0]
        with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            connection.execute("ROLLBACK")
            return True

    async def until_declared_dead(self, member: WorkerProcess) -> None:
        """Wait until another worker has marked it dead. A merely silent worker may still come back."""

        async def marked() -> bool:
            _, members = await self.broker._session.worker_registry._read()
            return all(seen.member.id != member.id or seen.member.gone for seen in members)

        await until(marked, BOUND)

    # Jobs.

    async def enqueue(self, task: str, number: int, max_attempts: int = 3) -> list[str]:
        async with build(self.url) as app:
            using = app.tasks[task].using(max_attempts=max_attempts)
            return [handle.id for handle in await using.aenqueue_many([()] * number)]

    async def enqueue_later(self, task: str, *delays: float) -> list[str]:
        async with build(self.url) as app:
            return [(await app.tasks[task].using(delay=delay).aenqueue()).id for delay in delays]

    async def jobs(self, state: JobState | None = None) -> dict[str, Job]:
        found: list[Job] = []
        while page := await self.broker.jobs(state=state, after=found[-1].id if found else None, limit=5000):
            found += page
        return {job.id: job for job in found}

    async def until_running(self, ids: Sequence[str], worker: str | None = None) -> float:
        """Wait until these jobs run, on this worker if one is named. Return the seconds."""

        async def all_run() -> bool:
            running = await self.jobs(JobState.RUNNING)
            return all(id in running and worker in (None, running[id].worker) for id in ids)

        return await until(all_run, BOUND)

    async def until_idle(self) -> None:
        async def nothing_left() -> bool:
            stats = await self.broker.stats("default")
            return stats.pending + stats.scheduled + stats.running == 0

        await until(nothing_left, BOUND)

    async def now(self) -> int:
        """Return the time of the engine, in microseconds."""
        now, _ = await self.broker._engine.documents(KIND)
        return now

    def end(self, task: str) -> None:
        """Allow the jobs of this task to end."""
        (self.folder / f"end-{task}").touch()

    def logged(self, event: str, member: WorkerProcess | None = None) -> list[str]:
        """Return the ids of the jobs with this event in the log, from this process or from any."""
        if not self.event_log.exists():
            return []
        lines = [line.split() for line in self.event_log.read_text().splitlines()]
        return [id for name, id, by in lines if name == event and (member is None or member.pid == int(by))]

    async def until_logged(self, event: str, ids: Sequence[str], member: WorkerProcess | None = None) -> None:
        async def all_logged() -> bool:
            return set(ids) <= set(self.logged(event, member))

        await until(all_logged, BOUND)
