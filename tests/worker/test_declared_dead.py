"""A worker is declared dead while a claim of its is under way."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from dayjob import Context, Job
from dayjob.events import Event
from tests.support.workers import MakeApp, record, until, working


async def test_jobs_claimed_under_the_old_id_are_released_and_run_under_the_new_one(
    make_app: MakeApp,
) -> None:
    app = make_app()
    workers: list[str | None] = []

    @app.task(name="note")
    async def note(ctx: Context) -> None:
        workers.append((await record(app.broker, ctx.job.id)).worker)

    async with app, working(app) as worker:
        await until(lambda: worker.id)
        claim, old = app.broker.claim, worker.id

        async def claim_and_be_replaced(*args: Any, **options: Any) -> list[Job]:
            jobs = await claim(*args, **options)
            if jobs and worker.id == old:
                registration = worker._registration
                assert registration is not None
                registration._member = replace(registration._member, id="another")
                worker._replaced(old)
            return jobs

        first = await note.aenqueue()  # The waiting claim was sent before.
        await first.await_end(10)
        app.broker.claim = claim_and_be_replaced  # type: ignore[method-assign]
        waking = await note.aenqueue()
        await waking.await_end(10)
        last = await note.aenqueue()
        await last.await_end(10)
        job = await record(app.broker, last.id)
    assert job.attempts == 1
    assert job.worker not in (None, old), "a late heartbeat may have replaced the new id, too"
    assert workers == [old, old, job.worker]


async def test_the_jobs_that_a_worker_lost_by_its_own_death_have_events(make_app: MakeApp) -> None:
    """The heartbeat ends the claims of the old id, in its own thread."""
    app = make_app()
    events: list[str] = []
    started = asyncio.Event()

    @app.task(name="lost", max_attempts=1)
    async def lost(ctx: Context) -> None:
        started.set()
        await ctx.cancelled.wait()

    @app.on("job.*")
    async def observe(event: Event) -> None:
        events.append(event.name)
        assert asyncio.get_running_loop() is loop

    loop = asyncio.get_running_loop()
    async with app, working(app) as worker:
        await lost.aenqueue()
        await started.wait()
        registration = worker._registration
        assert registration is not None
        await registration.leave(app.broker)  # As if another process had removed it.
        registration.beat_at = 0.0
        await until(lambda: "job.dead" in events and "job.lost" in events)
    assert sorted(events) == ["job.dead", "job.enqueued", "job.failed", "job.lost", "job.started"]
