"""The jobs that workers are stopped in the middle of; each tells what it does in lines of a shared file."""

from __future__ import annotations

import asyncio
import os
import threading

from dayjob.app import App
from dayjob.context import Context
from dayjob.runtime.clock import SYSTEM

URL, DIARY = "SHUTDOWN_JOBS_URL", "SHUTDOWN_JOBS_DIARY"

SHORT = 0.2
"""Seconds that a short job takes."""


def tell(what: str, ctx: Context) -> None:
    with open(os.environ[DIARY], "ab", buffering=0) as diary:  # noqa: PTH123 - one append, one write
        diary.write(f"{what} {ctx.job.id} {os.getpid()}\n".encode())


def build(url: str) -> App:
    """The app, for the worker, and for the test that enqueues."""
    app = App(url)

    @app.task(name="short")
    async def short(ctx: Context) -> None:
        tell("started", ctx)
        await SYSTEM.wait(asyncio.Event(), SHORT)
        tell("finished", ctx)

    @app.task(name="long")
    async def long(ctx: Context) -> None:
        """Never ends by itself, but tells when it is asked to."""
        tell("started", ctx)
        await ctx.shutting_down.wait()
        tell("told", ctx)
        await asyncio.Event().wait()

    @app.task(name="stuck")
    def stuck(ctx: Context) -> None:
        """Holds its thread for ever."""
        tell("started", ctx)
        threading.Event().wait()

    @app.task(name="leaning")
    async def leaning(ctx: Context) -> None:
        """A coroutine that waits for a thread which it never gets back."""
        tell("started", ctx)
        await asyncio.to_thread(threading.Event().wait)

    @app.task(name="littering")
    async def littering(ctx: Context) -> None:
        """Leaves a thread behind that never ends, and that an interpreter waits for when it exits."""
        threading.Thread(target=threading.Event().wait).start()
        tell("finished", ctx)

    return app


app = build(os.environ.get(URL, "memory://"))
