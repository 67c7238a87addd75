"""Running what was enqueued, and looking at what is stored."""

from __future__ import annotations

import asyncio

from dayjob import App, Job, Worker


async def arun(app: App, *queues: str) -> None:
    """Run jobs one by one, in order, until none can run; of all queues unless some are named."""
    await Worker(app, queues, concurrency=1).run_until_idle()


def run(app: App, *queues: str) -> None:
    asyncio.run(arun(app, *queues))


async def ajobs(app: App) -> list[Job]:
    return await (await app.opened()).jobs(limit=10_000)


def jobs(app: App) -> list[Job]:
    """Everything that is stored, in id order."""
    return app.call(lambda: ajobs(app))


def job(app: App) -> Job:
    (only,) = jobs(app)
    return only


def steady_id(value: object) -> str | None:
    """A test's id that is the same in every process: no addresses, no order of a set."""
    text = ascii(value)
    return None if " at 0x" in text or isinstance(value, set | frozenset) else text
