"""The demo's app and its tasks. They sleep for a while, and some of them fail."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from dayjob.app import App
from dayjob.context import Context
from dayjob.model.config import BrokerConfig, QueueConfig, Retention
from dayjob.model.handler_exceptions import DeadLetter, JobCancelled
from dayjob.model.retry import Retry
from dayjob.runtime.clock import SYSTEM

EMAIL, RESIZE, REPORT, FLAKY, POISON, REMINDER, EXPORT = QUEUES = (
    "email", "resize", "report", "flaky", "poison", "reminder", "export",
)  # fmt: skip

RETENTION = timedelta(hours=1)
"""Longer than any demo, so that the audit finds every finished job."""

EXPORT_SECONDS = 300


def make_app(url: str) -> App:
    """Return the app. It configures the demo's own queues only, as the store may have others."""
    retention = Retention(done=RETENTION, dead=RETENTION, cancelled=RETENTION)
    config = BrokerConfig(queues={queue: QueueConfig(retention=retention) for queue in QUEUES})
    app = App(url, config=config, name="demo")
    app.task(name="send", queue=EMAIL)(send)
    app.task(name="resize", queue=RESIZE)(resize)
    app.task(name="report", queue=REPORT)(report)
    app.task(name="fetch", queue=FLAKY, retry=Retry.exponential(attempts=5, base=0.4, jitter="equal"))(fetch)
    app.task(name="parse", queue=POISON, retry=Retry.fixed(attempts=3, delay=0.6))(parse)
    app.task(name="remind", queue=REMINDER)(remind)
    app.task(name="export", queue=EXPORT)(export)
    return app


async def send(address: str) -> str:
    await _work(0.03)
    return f"sent to {address}"


async def resize(photo: str, width: int) -> None:
    await _work(0.06)


async def report(ctx: Context, year: int) -> None:
    for quarter in range(1, 5):
        await _work(0.05)
        ctx.progress(quarter / 4, f"Q{quarter} of {year}")


async def fetch(ctx: Context, failures: int) -> None:
    """Fail that many times, then succeed."""
    await _work(0.03)
    if ctx.attempt <= failures:
        raise ConnectionError("connection reset by the server")


async def parse(text: str, broken: bool) -> None:
    await _work(0.01)
    if broken:
        raise DeadLetter("the file is not a table")
    raise ValueError(text)


async def remind(ctx: Context, appointment: str) -> None:
    if SYSTEM.now() < ctx.job.run_us:
        raise DeadLetter("started before its due time")
    await _work(0.01)


async def export(ctx: Context, archive: str) -> None:
    """Run for minutes, unless cancelled."""
    try:
        async with asyncio.timeout(EXPORT_SECONDS):
            await ctx.cancelled.wait()
    except TimeoutError:
        return
    raise JobCancelled


async def _work(seconds: float) -> None:
    await SYSTEM.wait(asyncio.Event(), seconds)
