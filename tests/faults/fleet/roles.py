"""A worker in a process of its own, as the fleet's tests start it, stop it, and kill it.

What its jobs do and what becomes of them is written to a diary that all processes of a test share: a line is
a word, a job's id, and the process.
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
from tests.support.processes import pause, say

HOUR = 3600.0
KEEP_ALL = Retention(done=HOUR, dead=HOUR, cancelled=HOUR)


class Diary:
    """Lines that are in the file as soon as they are written."""

    def __init__(self, path: str) -> None:
        self.folder = Path(path).parent
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, word: str, id: str) -> None:
        os.write(self._file, f"{word} {id} {os.getpid()}\n".encode())

    def ended(self, task: str) -> bool:
        """Whether the test lets these jobs end."""
        return (self.folder / f"end-{task}").exists()


def build(url: str, diary: Diary | None = None, *, dead_after: float = 15) -> App:
    """The app, for the worker, and for the test that enqueues."""
    app = App(url, config=BrokerConfig(dead_after=dead_after, retention=KEEP_ALL))

    def write(word: str, ctx: Context) -> None:
        assert diary is not None
        diary.write(word, ctx.job.id)

    def ended(task: str) -> bool:
        assert diary is not None
        return diary.ended(task)

    @app.task(name="tick")
    async def tick() -> None:
        pass

    @app.task(name="hang")
    async def hang() -> None:
        """Never ends by itself."""
        await asyncio.Event().wait()

    @app.task(name="hold")
    async def hold(ctx: Context) -> None:
        """Goes on until the test lets it end, or it is told to stop."""
        write("started", ctx)
        try:
            while not ended("hold"):
                await pause(0.05)
        finally:
            write(f"told-{ctx.cancelled.reason}" if ctx.cancelled else "finished", ctx)

    @app.task(name="stubborn")
    def stubborn(ctx: Context) -> None:
        """The same in a thread, and deaf."""
        write("started", ctx)
        while not ended("stubborn"):
            block(0.05)
        write(f"told-{ctx.cancelled.reason}" if ctx.cancelled else "finished", ctx)

    return app


def declare(app: App, names: list[str]) -> None:
    """Tasks that are recurring by the code, once an hour."""

    async def recurring() -> None:
        pass

    for name in names:
        app.task(name=name, every=HOUR)(recurring)


async def work(url: str, diary_path: str, options: dict[str, Any]) -> None:
    """A worker until it is stopped. Says its id.

    ``machine`` makes its process look like one of another machine, ``declares`` names what its code makes
    recurring, and ``undeclared_for`` is how long what no code declares any more is kept.
    """
    if machine := options.get("machine"):
        process.this_host = partial(str, machine)  # type: ignore[assignment]
    schedules.UNDECLARED_FOR = options.get("undeclared_for", schedules.UNDECLARED_FOR)
    diary = Diary(diary_path)
    app = build(url, diary, dead_after=options.get("dead_after", 15))
    declare(app, options.get("declares", []))
    worker = Worker(app, concurrency=options.get("concurrency", 10), name=options.get("name"))

    @app.on("worker.started")
    async def started(event: Event) -> None:
        say(worker.id)

    if options.get("tells", True):

        @app.on("job.succeeded")
        @app.on("job.lost")
        async def happened(event: Event) -> None:
            diary.write(event.name, event.id)

    await worker.run()
