"""What the demo's jobs do: mostly wait a little, and some of them fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dayjob.clock import SYSTEM
from dayjob.job import Job
from dayjob.settlement import Settlement

EXPORT_SECONDS = 300.0


class Hopeless(Exception):
    """A failure that trying again won't mend."""


class Cancelled(Exception):
    """The handler saw its cancel token fire, and gave up."""


async def perform(job: Job) -> Settlement:
    """Run a job's task, and say how its claim ends."""
    try:
        await TASKS[job.task](job)
    except Hopeless as error:
        return Settlement.dead_letter(job, error)
    except Cancelled:
        return Settlement.mark_cancelled(job)
    except Exception as error:
        return Settlement.nack(job, error)
    return Settlement.ack(job)


async def _send(job: Job) -> None:
    await _work(0.03)


async def _resize(job: Job) -> None:
    await _work(0.06)


async def _report(job: Job) -> None:
    await _work(0.2)


async def _fetch(job: Job) -> None:
    """Fails as often as its payload says, then succeeds."""
    await _work(0.03)
    if job.attempts <= int(job.payload):
        raise ConnectionError("the other side hung up")


async def _parse(job: Job) -> None:
    await _work(0.01)
    try:
        text = job.payload.decode()
    except UnicodeDecodeError as error:
        raise Hopeless(error) from error
    raise ValueError(text)


async def _remind(job: Job) -> None:
    if SYSTEM.now() < job.run_us:
        raise Hopeless("started before its time")
    await _work(0.01)


async def _export(job: Job) -> None:
    try:
        async with asyncio.timeout(EXPORT_SECONDS):
            await job.cancel_token.wait()
    except TimeoutError:
        return
    raise Cancelled


async def _work(seconds: float) -> None:
    await SYSTEM.wait(asyncio.Event(), seconds)


TASKS: dict[str, Callable[[Job], Awaitable[None]]] = {
    "send": _send,
    "resize": _resize,
    "report": _report,
    "fetch": _fetch,
    "parse": _parse,
    "remind": _remind,
    "export": _export,
}
