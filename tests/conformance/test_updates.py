"""Updates of a job: its record after each change of state or progress, until its end, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dayjob import App, Broker, BrokerConfig, Closed, Job
from dayjob.engines.base import Progress
from tests.support.arrange import KEEP_ALL, OpenBroker, claim_one, quiet
from tests.support.waiting import LONG, WatchedClock, with_timeout


@pytest.fixture
async def app(url: str, clock: WatchedClock) -> AsyncIterator[App]:
    app = App(url, config=BrokerConfig(duties=False))
    app.clock = clock
    async with app:
        yield app


class Updates:
    """Collects the updates of a job in the background. Each read is ``LONG`` after the one before."""

    def __init__(self, app: App, id: str, clock: WatchedClock) -> None:
        self.seen: list[tuple[str, tuple[float, str] | None]] = []
        self._clock = clock
        self.task = asyncio.create_task(self._collect(app, id))

    async def _collect(self, app: App, id: str) -> None:
        async for job in app.job(id).updates(interval=LONG):
            self.seen.append((job.state.value, job.progress))

    async def read(self) -> list[tuple[str, tuple[float, str] | None]]:
        """Advance to the next read, and return the updates of it."""
        await self._clock.until_waiting()
        before = len(self.seen)
        self._clock.advance(LONG)
        await self._clock.until_waiting()
        return self.seen[before:]


async def report(broker: Broker, claim: Job, fraction: float) -> None:
    await broker.record_progress([Progress(claim.key, claim.claim, fraction, "")])


async def test_each_change_of_state_or_progress_is_an_update(
    app: App, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    enqueued = await broker.enqueue("q")
    updates = Updates(app, enqueued.id, clock)
    assert await updates.read() == []
    claim = (await broker.claim("q", lease=100 * LONG))[0]
    assert await updates.read() == [("running", None)]
    await report(broker, claim, 0.5)
    assert await updates.read() == [("running", (0.5, ""))]
    assert await updates.read() == []
    await broker.nack(claim, "again", delay=0)
    assert await updates.read() == [("pending", (0.5, ""))]
    await broker.ack(await claim_one(broker))
    await with_timeout(updates.task)
    assert updates.seen[-1] == ("done", None)
    assert len(updates.seen) == 5


async def test_the_end_of_a_job_is_an_update_at_once(
    app: App, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    updates = Updates(app, (await broker.enqueue("q")).id, clock)
    await clock.until_waiting()
    await broker.dead_letter(await claim_one(broker), "no good")
    await with_timeout(updates.task)
    assert updates.seen == [("pending", None), ("dead", None)]


async def test_the_updates_of_a_job_that_is_not_kept_end_with_it(
    app: App, broker: Broker, clock: WatchedClock
) -> None:
    updates = Updates(app, (await broker.enqueue("q")).id, clock)
    await clock.until_waiting()
    await broker.ack(await claim_one(broker))
    await with_timeout(updates.task)
    assert updates.seen == [("pending", None)]


async def test_the_close_of_the_app_ends_updates(app: App, broker: Broker, clock: WatchedClock) -> None:
    updates = Updates(app, (await broker.enqueue("q")).id, clock)
    await clock.until_waiting()
    await app.close()
    with pytest.raises(Closed):
        await with_timeout(updates.task)
