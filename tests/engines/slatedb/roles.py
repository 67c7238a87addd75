"""The functions that the child processes of these tests run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dayjob import App, Broker, BrokerConfig, Context, EngineFenced, LeaseLost, Worker
from tests.support.processes import send_to_test, wait_for_test

QUIET = BrokerConfig(duties=False)


async def hold(url: str) -> None:
    """Enqueue and claim a job; try to ack it on a message of the test, and report the outcome."""
    broker = await Broker(url, config=QUIET).open()
    await broker.enqueue("q", b"held")
    (job,) = await broker.claim("q")
    send_to_test(job.id)
    await wait_for_test()
    send_to_test(await outcome(broker.ack(job)))
    send_to_test(await outcome(broker.enqueue("q", b"late")))
    send_to_test(await outcome(broker.close()))


async def claim_and_stay(url: str) -> None:
    """Enqueue two jobs, claim one, and live until killed."""
    broker = await Broker(url, config=QUIET).open()
    await broker.enqueue("q", b"first")
    await broker.enqueue("q", b"second")
    (job,) = await broker.claim("q", lease=3600)
    send_to_test(job.id)
    await wait_for_test()


async def wait_for_a_job(url: str) -> None:
    """Wait for a job that never arrives; report the end of the wait."""
    broker = await Broker(url, config=QUIET).open()
    send_to_test("open")
    send_to_test(await outcome(broker.claim("nothing", wait=60)))


async def try_to_open(url: str) -> None:
    broker = Broker(url, config=QUIET)
    send_to_test(await outcome(broker.open()))
    if broker.is_open:
        await broker.close()


async def read_all(url: str) -> None:
    """Read the database as a reader, once for each message of the test."""
    async with Broker(url, config=QUIET) as broker:
        while True:
            jobs = {job.payload.decode(): job.state.value for job in await broker.jobs()}
            stats = await broker.stats("q")
            send_to_test([jobs, stats.pending, stats.running, sorted(await broker.paused())])
            await wait_for_test()


async def run_worker(url: str) -> None:
    """Run a worker with an endless job; report its end, and its log."""
    errors: list[str] = []

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    logging.getLogger("dayjob.worker").addHandler(Errors(logging.ERROR))
    app = App(url)

    @app.task(name="endless", queue="q")
    async def endless(ctx: Context) -> None:
        send_to_test("running")
        await asyncio.Event().wait()

    await endless.aenqueue()
    send_to_test(await outcome(Worker(app, queues=("q",), shutdown_timeout=5).run()))
    send_to_test(errors)


async def outcome(attempt: Any) -> str:
    """Return the name of the raised error, or 'done'."""
    try:
        await attempt
    except (EngineFenced, LeaseLost) as error:
        return type(error).__name__
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"
