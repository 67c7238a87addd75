"""A worker is declared dead while a claim of its is under way."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dayjob import Context, Job
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
    assert (job.attempts, job.worker) == (1, "another")
    assert workers == [old, old, "another"]
