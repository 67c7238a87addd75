"""Running an app's jobs, and listing the stored ones."""

from __future__ import annotations

import asyncio

from dayjob import App, Job, Worker


async def arun(app: App, *queues: str) -> None:
    """Run jobs one by one, in order, until none can run. Without queues, of all queues."""
    await Worker(app, queues, concurrency=1).run_until_idle()


def run(app: App, *queues: str) -> None:
    asyncio.run(arun(app, *queues))


async def ajobs(app: App) -> list[Job]:
    return await (await app.opened()).jobs(limit=10_000)


def jobs(app: App) -> list[Job]:
    """Return all stored jobs in id order."""
    return app.call(lambda: ajobs(app))


def job(app: App) -> Job:
    (only,) = jobs(app)
    return only


def steady_id(value: object) -> str | None:
    """Return a test id that is the same in every process: without addresses and set order."""
    text = ascii(value)
    return None if " at 0x" in text or isinstance(value, set | frozenset) else text
