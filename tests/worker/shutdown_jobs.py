"""Jobs that run while workers are stopped. Each logs its events in lines of a shared file."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from dayjob.app import App
from dayjob.context import Context
from dayjob.runtime.clock import SYSTEM, block, yield_to_loop

URL, DIARY = "SHUTDOWN_JOBS_URL", "SHUTDOWN_JOBS_DIARY"

SHORT = 0.2
"""The duration of a short job in seconds."""


def log_event(event: str, ctx: Context) -> None:
    with open(os.environ[DIARY], "ab", buffering=0) as diary:  # noqa: PTH123 - one append, one write
        diary.write(f"{event} {ctx.job.id} {os.getpid()}\n".encode())


def build(url: str) -> App:
    """Return the app, for the worker and for the test."""
    app = App(url)

    @app.task(name="short")
    async def short(ctx: Context) -> None:
        log_event("started", ctx)
        await SYSTEM.wait(asyncio.Event(), SHORT)
        log_event("finished", ctx)

    @app.task(name="long")
    async def long(ctx: Context) -> None:
        """Run for ever, and log the shutdown signal."""
        log_event("started", ctx)
        await ctx.shutting_down.wait()
        log_event("signalled", ctx)
        await asyncio.Event().wait()

    @app.task(name="stuck")
    def stuck(ctx: Context) -> None:
        """Block its thread for ever."""
        log_event("started", ctx)
        threading.Event().wait()

    @app.task(name="leaning")
    async def leaning(ctx: Context) -> None:
        """Await a thread that never ends."""
        log_event("started", ctx)
        await asyncio.to_thread(threading.Event().wait)

    @app.task(name="stubborn")
    async def stubborn(ctx: Context) -> None:
        """Suppress each cancellation."""
        log_event("started", ctx)
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    @app.task(name="forking")
    def forking(ctx: Context) -> None:
        """Fork a helper and terminate it."""
        helper = os.fork()
        if helper == 0:
            log_event("forked", ctx)
            block(60)
            os._exit(0)
        deadline = SYSTEM.elapsed() + 20
        while "forked" not in Path(os.environ[DIARY]).read_text() and SYSTEM.elapsed() < deadline:
            block(0.01)
        os.kill(helper, signal.SIGTERM)
        if os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == -signal.SIGTERM:
            log_event("terminated", ctx)

    @app.task(name="littering")
    async def littering(ctx: Context) -> None:
        """Start a non-daemon thread that never ends, which the interpreter waits for at exit."""
        threading.Thread(target=threading.Event().wait).start()
        log_event("finished", ctx)

    @app.task(name="blocking")
    async def blocking(ctx: Context) -> None:
        """Block the event loop for ever."""
        log_event("started", ctx)
        threading.Event().wait()

    @app.task(name="exiting")
    async def exiting(ctx: Context) -> None:
        """Await a task that ends the program, as a library's ``main`` may."""
        log_event("started", ctx)
        await asyncio.gather(_exit())

    return app


async def _exit() -> None:
    await yield_to_loop()
    sys.exit(0)


app = build(os.environ.get(URL, "memory://"))
