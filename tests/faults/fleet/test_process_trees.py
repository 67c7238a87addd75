"""Faults of the processes of one ``dayjob worker --processes``, which share their heartbeats."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from textwrap import dedent

import pytest

from dayjob.model.worker_info import WorkerInfo
from tests.cli.processes import Command, eventually, is_gone, starting
from tests.faults.fleet.worker_fleet import WorkerFleet
from tests.support.bound import BOUND
from tests.support.processes import pause, until

pytestmark = pytest.mark.slow

DEAD_AFTER = 1.0
BEATS = 4
"""Heartbeats that take longer than ``DEAD_AFTER``."""

JOBS = """
    import asyncio, os
    from dayjob import App, BrokerConfig

    app = App(os.environ["URL"], config=BrokerConfig(dead_after=float(os.environ["DEAD_AFTER"])))

    @app.task(name="hold")
    async def hold() -> None:
        await asyncio.Event().wait()
"""


class Tree:
    """A supervisor and its children."""

    def __init__(self, command: Command, fleet: WorkerFleet) -> None:
        self.command = command
        self._fleet = fleet

    async def workers(self) -> dict[int, WorkerInfo]:
        """Return the registered workers, also silent ones, by pid."""
        _, members = await self._fleet.broker._session.worker_registry._read()
        return {seen.member.pid: seen.info() for seen in members if not seen.member.gone}

    async def until_workers(self, count: int) -> dict[int, WorkerInfo]:
        async def registered() -> bool:
            return len(await self.workers()) == count

        await until(registered, BOUND)
        return await self.workers()

    async def until_shared(self, pids: set[int]) -> None:
        """Wait until one commit has stored the heartbeats of all of these."""

        async def equal() -> bool:
            workers = await self.workers()
            return len({workers[pid].seen_us for pid in pids if pid in workers}) == 1

        await until(equal, BOUND)

    async def beat_on(self, pids: set[int], beats: int) -> None:
        """Wait for as many heartbeats of each. Each keeps its id."""
        before = await self.workers()
        seen: dict[int, set[int]] = {pid: set() for pid in pids}

        async def enough() -> bool:
            workers = await self.workers()
            for pid in pids:
                assert workers[pid].id == before[pid].id
                seen[pid].add(workers[pid].seen_us)
            return all(len(times) > beats for times in seen.values())

        await until(enough, BOUND)

    async def freeze(self, pid: int) -> None:
        """Stop the process; on SQLite not during a write, which would block all others."""
        while True:
            os.kill(pid, SIGSTOP)
            eventually(lambda: _is_stopped(pid), "stopped process")
            if not self._fleet.url.startswith("sqlite:") or self._fleet._can_be_written():
                return
            os.kill(pid, SIGCONT)
            await pause(0.05)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def tree(fleet: WorkerFleet, tmp_path: Path) -> Iterator[Tree]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "jobs.py").write_text(dedent(JOBS))
    environment = {"URL": fleet.url, "DEAD_AFTER": str(DEAD_AFTER)}
    with starting(folder, tmp_path, environment) as start:
        command = start("jobs:app", "--processes", "3", "--no-uvloop")
        try:
            yield Tree(command, fleet)
        finally:
            children = [int(pid) for pid in re.findall(r"has pid (\d+)", command.output())]
            if command.process.poll() is None:
                command.kill()
            for pid in children:
                if not is_gone(pid):
                    os.kill(pid, SIGKILL)
            eventually(lambda: all(map(_has_ended, children)), "end of the children")


def _has_ended(pid: int) -> bool:
    """Whether the process has ended with all of its threads. A thread that remains keeps connections open."""
    try:
        return is_gone(pid) and len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1
    except OSError:
        return True


async def test_a_frozen_child_is_declared_dead_and_a_killed_one_takes_no_other_with_it(tree: Tree) -> None:
    first = await tree.until_workers(3)
    await tree.until_shared(set(first))
    frozen, killed, last = first
    await tree.freeze(frozen)

    async def declared_dead() -> bool:
        return frozen not in await tree.workers()

    await until(declared_dead, BOUND)
    await tree.until_shared({killed, last})
    os.kill(frozen, SIGCONT)
    again = await tree.until_workers(3)
    assert again[frozen].id != first[frozen].id
    await tree.until_shared(set(again))

    os.kill(killed, SIGKILL)
    await tree.beat_on({frozen, last}, BEATS)
    now = await tree.until_workers(3)
    assert (now[frozen].id, now[last].id) == (again[frozen].id, first[last].id)
    await tree.until_shared(set(now))


async def test_the_workers_live_on_though_their_supervisor_is_frozen_or_killed(tree: Tree) -> None:
    held = await tree._fleet.enqueue("hold", 1)
    await tree._fleet.until_running(held)
    workers = await tree.until_workers(3)
    await tree.until_shared(set(workers))
    os.kill(tree.command.pid, SIGSTOP)
    await tree.beat_on(set(workers), BEATS)
    tree.command.kill()
    [holder] = (await tree._fleet.jobs()).values()
    [pid] = [pid for pid, worker in workers.items() if worker.id == holder.worker]
    await tree.beat_on({pid}, BEATS)
