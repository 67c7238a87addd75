"""A process of a run: it opens the storage, records all calls, and has one role or several.

A message from the test ends its clients. A process with the role ``drain`` then waits until no job waits or
runs, and for a second message. After that the workers stop, and it writes the final state.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from dayjob import Worker
from dayjob.errors import EngineFenced
from dayjob.runtime.clock import SYSTEM
from tests.chaos.final_state import final_state, recorded_keys
from tests.chaos.record import Closed, Opened, Record, write_final
from tests.chaos.recorder import Recorder
from tests.chaos.seeded import Choices
from tests.support.processes import pause, send_to_test, wait_for_test
from tests.support.servers.redis_clock import read_shifted_clock
from tests.support.shifted_clock import SharedOffset, shift_clock

DRAIN_LIMIT = 80.0
"""Seconds after which a drain gives up. The jobs that are left are still accounted for."""

SOON = 60_000_000
"""Microseconds within which a drain waits for scheduled jobs, if the clock was set."""

CLOCK_WAS_SET = "clock_was_set"
"""A file in the folder of a run whose clock was set."""

FENCED = 4
"""The exit status of a process that another has fenced."""


async def member(url: str, folder_path: str, roles: list[str], options: dict[str, Any]) -> None:
    folder = Path(folder_path)
    logging.basicConfig(filename=folder / "log", format="%(asctime)s %(process)d %(levelname)s %(message)s")
    offset = SharedOffset(folder / "clock")
    skew = round(options.get("skew", 0) * 1_000_000)
    shift_clock(lambda: offset.get() + skew)
    read_shifted_clock()
    os.environ["DAYJOB_CHAOS_URL"] = url
    from tests.chaos import load

    record = Record(folder, f"{'-'.join(roles)}-{os.getpid()}")
    recorder = Recorder(record)
    record.write(Opened(pid=os.getpid(), role="-".join(roles), announces="work" in roles))
    load.use_record(record)
    recorder.announce(load.app)
    with recorder.installed():
        try:
            await load.again(load.app.opened)
            await Member(folder, roles, options).run()
            await load.app.close()
        except* EngineFenced:
            os._exit(FENCED)
    record.write(Closed())
    record.close()
    send_to_test("closed")


class Member:
    def __init__(self, folder: Path, roles: list[str], options: dict[str, Any]) -> None:
        self._folder = folder
        self._roles = roles
        self._options = options
        self._choices = Choices(f"{options.get('seed')} {roles} {options.get('number')}")
        self._stopped = asyncio.Event()
        self._stop_workers = asyncio.Event()

    async def run(self) -> None:
        from tests.chaos import load

        clients: list[Awaitable[None]] = []
        workers: list[Awaitable[None]] = []
        if "produce" in self._roles:
            producer = load.Producer(
                self._choices, exits=self._options.get("exits", False), long=self._options.get("long", False),
                rate=self._options.get("rate", 50),
            )  # fmt: skip
            clients.append(producer.run(self._stopped))
        if "operate" in self._roles:
            clients.append(load.operate(self._choices, self._stopped))
        if "consume" in self._roles:
            workers.append(load.consume(self._stop_workers))
        if "work" in self._roles:
            workers += [self._work(), self._note_lead()]
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(_coroutine(each)) for each in workers]
            producing = [group.create_task(_coroutine(each)) for each in clients]
            if "schedule" in self._roles:
                (self._folder / "first_due").write_text(str(await load.schedule(load.app.broker)))
            send_to_test("ready")
            await wait_for_test()
            self._stopped.set()
            if producing:
                await asyncio.wait(producing)
            if "drain" in self._roles:
                await self._drain()
                send_to_test("drained")
                await wait_for_test()
            self._stop_workers.set()
            if working:
                await asyncio.wait(working)
            if "drain" in self._roles:
                await self._write_final()

    async def _work(self) -> None:
        from tests.chaos import load

        while not self._stop_workers.is_set():
            worker = Worker(
                load.app, load.QUEUES, concurrency=20, shutdown_timeout=3, pool_processes=1,
                name=f"{os.getpid()}-{self._choices.number(10**9)}",
            )  # fmt: skip
            running = asyncio.ensure_future(worker.run())
            stop = asyncio.ensure_future(self._stop_workers.wait())
            restart = self._options.get("restart_workers")
            timeout = self._choices.between(1, 2 * restart) if restart else None
            await asyncio.wait({running, stop}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if stop.done() or self._choices.chance(0.5):
                worker.stop()
            else:
                worker.stop_now()
            stop.cancel()
            await running

    async def _note_lead(self) -> None:
        """Write the pid of the leader to a file, for the faults that end it."""
        from tests.chaos import load

        broker = load.app.broker
        while not self._stop_workers.is_set():
            if broker.leads:
                (self._folder / "leader").write_text(str(os.getpid()))
            await SYSTEM.wait(self._stop_workers, 0.5)

    async def _drain(self) -> None:
        from tests.chaos import load

        broker = load.app.broker
        await load.again(lambda: broker.pause_schedule(load.SCHEDULE))
        await load.again(lambda: broker.resume(load.BRIEF))  # A killed operator may have paused it.
        ends = SYSTEM.elapsed() + DRAIN_LIMIT
        while SYSTEM.elapsed() < ends:
            stats = (await load.again(broker.all_stats)).values()
            if not sum(each.pending + each.limited + each.running for each in stats) and not (
                await self._is_one_due_soon()
                if self._clock_was_set()
                else sum(each.scheduled for each in stats)
            ):
                return
            await pause(0.1)

    def _clock_was_set(self) -> bool:
        """Whether some jobs may be due in years."""
        return (self._folder / CLOCK_WAS_SET).exists()

    async def _is_one_due_soon(self) -> bool:
        """Whether a scheduled job may become pending before the workers have stopped."""
        from tests.chaos import load

        due = await load.again(load.app.broker.next_due)
        return due is not None and due < SOON

    async def _write_final(self) -> None:
        from tests.chaos import load

        broker = load.app.broker
        due = {load.SCHEDULE: int((self._folder / "first_due").read_text())}
        keys = recorded_keys(self._folder)
        write_final(self._folder, await load.again(lambda: final_state(broker, keys, due)))


async def _coroutine(work: Awaitable[None]) -> None:
    await work
