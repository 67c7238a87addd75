"""A process with a wrong clock, among others with right clocks."""

from __future__ import annotations

import asyncio

from dayjob import App, Context, Worker
from dayjob.runtime.clock import SystemClock
from tests.faults.postgres.load import CONFIG
from tests.support.processes import send_to_test, wait_for_test

LEASE = 4.0
"""Seconds; a worker renews when half of it is over."""


def shift_clock(seconds: float) -> None:
    """Shift the host's clock for this process."""
    right = SystemClock.now

    def wrong(self: SystemClock) -> int:
        return right(self) + round(seconds * 1_000_000)

    SystemClock.now = wrong  # type: ignore[method-assign]


async def work_in_another_time(url: str, seconds: float) -> None:
    """Enqueue and run jobs, then run duties. Send the ids and the results to the test."""
    shift_clock(seconds)
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
