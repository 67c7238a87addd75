"""A worker in a process of its own, which the fleet tests start, stop and kill.

Runs and outcomes are written to an event log that all processes of a test share: each line has the event, the
id of the job, and the pid.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any

from dayjob import App, BrokerConfig, Context, Retention, Worker
from dayjob.broker import schedules
from dayjob.events import Event
from dayjob.runtime import process
from dayjob.runtime.clock import block
from tests.support.processes import pause, send_to_test

HOUR = 3600.0
KEEP_ALL = Retention(done=HOUR, dead=HOUR, cancelled=HOUR)


class EventLog:
    """An append-only log file without a buffer."""

    def __init__(self, path: str) -> None:
        self.folder = Path(path).parent
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, id: str) -> None:
        os.write(self._file, f"{event} {id} {os.getpid()}\n".encode())

    def ended(self, task: str) -> bool:
        """Return whether the test has allowed the jobs of this task to end."""
        return (self.folder / f"end-{task}").exists()


def build(url: str, event_log: EventLog | None = None, *, dead_after: float = 15) -> App:
    """Build the app, for the worker and for the test that enqueues."""
    app = App(url, config=BrokerConfig(dead_after=dead_after, retention=KEEP_ALL))

    def write(event: str, ctx: Context) -> None:
        assert event_log is not None
        event_log.write(event, ctx.job.id)

    def ended(task: str) -> bool:
        assert event_log is not None
        return event_log.ended(task)

    @app.task(name="tick")
    async def tick() -> None:
        pass

    @app.task(name="brief")
    async def brief() -> None:
        await pause(0.4)

    @app.task(name="crash")
    async def crash() -> None:
        os._exit(9)

    @app.task(name="crash_late")
    async def crash_late() -> None:
        await pause(0.3)
        os._exit(9)

    @app.task(name="burn")
    def burn() -> None:
        """Use the CPU in a thread."""
        for _ in range(10_000):
            sum(range(1000))

    @app.task(name="hang")
    async def hang() -> None:
        """Never end."""
        await asyncio.Event().wait()

    @app.task(name="hold")
    async def hold(ctx: Context) -> None:
        """Run until the test allows the end, or the run is cancelled."""
        write("started", ctx)
        try:
            while not ended("hold"):
                await pause(0.05)
        finally:
            write(f"cancelled-{ctx.cancelled.reason}" if ctx.cancelled else "finished", ctx)

    @app.task(name="ignore_cancel")
    def ignore_cancel(ctx: Context) -> None:
        """Run in a thread until the test allows the end, and ignore the cancel."""
        write("started", ctx)
        while not ended("ignore_cancel"):
            block(0.05)
        write(f"cancelled-{ctx.cancelled.reason}" if ctx.cancelled else "finished", ctx)

    return app


def declare(app: App, names: list[str]) -> None:
    """Declare tasks that recur once an hour."""

    async def recurring() -> None:
        pass

    for name in names:
        app.task(name=name, every=HOUR)(recurring)


async def work(url: str, log_path: str, options: dict[str, Any]) -> None:
    """Run a worker until it is stopped, and send its id.

    ``machine`` makes the process look like one of another machine. ``declares`` names the declared schedules.
    ``undeclared_for`` is the grace time of schedules that are no longer declared.
    """
    if machine := options.get("machine"):
        process.this_host = partial(str, machine)  # type: ignore[assignment]
    schedules.UNDECLARED_FOR = options.get("undeclared_for", schedules.UNDECLARED_FOR)
    event_log = EventLog(log_path)
    app = build(url, event_log, dead_after=options.get("dead_after", 15))
    declare(app, options.get("declares", []))
    worker = Worker(app, options.get("queues"), options.get("concurrency", 10), name=options.get("name"))

    @app.on("worker.started")
    async def started(event: Event) -> None:
        send_to_test(worker.id)

    if options.get("log_events", True):

        @app.on("job.succeeded")
        @app.on("job.lost")
        async def log(event: Event) -> None:
            event_log.write(event.name, event.id)

    await worker.run(signals=True)
