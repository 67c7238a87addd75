"""A process with a wrong clock, among others with right clocks."""

from __future__ import annotations

import asyncio

from dayjob import App, Context, Worker
from tests.faults.postgres.load import CONFIG
from tests.support.processes import send_to_test, wait_for_test
from tests.support.shifted_clock import shift_clock

LEASE = 4.0
"""Seconds; a worker renews when half of it is over."""


async def work_in_another_time(url: str, seconds: float) -> None:
    """Enqueue and run jobs, then run duties. Send the ids and the results to the test."""
    shift_clock(lambda: round(seconds * 1_000_000))
    app = App(url, config=CONFIG)
    finish = asyncio.Event()

    @app.task(name="quick")
    async def quick() -> None:
        return

    @app.task(name="long")
    async def long(ctx: Context) -> None:
        await finish.wait()

    async with app:
        worker = Worker(app, lease=LEASE)
        working = asyncio.create_task(worker.run())
        send_to_test((await quick.aenqueue()).id)
        send_to_test((await quick.using(delay=0.3).aenqueue()).id)
        send_to_test((await quick.using(expires=60).aenqueue()).id)
        send_to_test((await long.aenqueue()).id)
        await wait_for_test()
        send_to_test([await app.broker.promote(), await app.broker.reap(), await app.broker.sweep()])
        await wait_for_test()
        finish.set()
        worker.stop()
        await working
        send_to_test("done")
