"""An outage longer than the timeout leaves the outcome unknown; a repeated call gets the first reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from dayjob import App, Broker, BrokerConfig, Context, EngineUnavailable, JobState, NewJob, Settlement
from dayjob.engines.postgres.statements import Statements
from dayjob.model.job import id_text
from dayjob.runtime.ids import new_key
from tests.faults.postgres.load import again
from tests.support.arrange import KEEP_ALL, record, running
from tests.support.observe import check_counters, every_job
from tests.support.servers.postgres import schema_of, server_url, with_options
from tests.support.servers.postgres_proxy import Proxy
from tests.support.workers import pause, until, working

CONFIG = BrokerConfig(retention=KEEP_ALL, duties=False)


class Outage:
    """An outage that starts when a reply is lost."""

    def __init__(self, wire: Proxy, statements: Statements) -> None:
        self._wire = wire
        self._statements = statements

    async def starts_after(self, name: str) -> None:
        wanted = self._statements[name]
        await self._wire.lose_reply(lambda statement: statement == wanted).happens()
        self._wire.refuse()
        self._wire.cut()

    async def ends(self) -> None:
        await self._wire.accept()


@pytest.fixture
def outage(wire: Proxy, tmp_path: Path) -> Outage:
    return Outage(wire, Statements(schema_of(tmp_path)))


@pytest.fixture
async def broker(direct_url: str) -> AsyncIterator[Broker]:
    """A broker that the outage does not affect."""
    async with Broker(direct_url, config=CONFIG) as broker:
        yield broker
        await check_counters(broker)


@pytest.fixture
def impatient_url(url: str, broker: Broker) -> str:
    """The URL through the proxy, with a short timeout."""
    return with_options(url, timeout="3")


@pytest.fixture
async def impatient(impatient_url: str) -> AsyncIterator[Broker]:
    async with Broker(impatient_url, config=CONFIG) as impatient:
        yield impatient


async def test_a_repeated_enqueue_with_the_same_id_is_stored_once(
    broker: Broker, impatient: Broker, outage: Outage
) -> None:
    begun = asyncio.create_task(outage.starts_after("insert_reserving"))
    id = id_text(new_key())
    with pytest.raises(EngineUnavailable):
        await impatient.enqueue("q", b"x", id=id)
    await begun
    await outage.ends()
    assert (await again(lambda: impatient.enqueue("q", b"x", id=id))).id == id
    assert [job.id for job in await every_job(broker)] == [id]


async def test_a_repeated_ack_is_applied_once(broker: Broker, impatient: Broker, outage: Outage) -> None:
    job = await running(broker)

    async def ack() -> None:
        await impatient.ack(job, enqueue=[NewJob("after")], kv={b"k": b"v"})

    begun = asyncio.create_task(outage.starts_after("settle"))
    with pytest.raises(EngineUnavailable):
        await ack()
    await begun
    await outage.ends()
    await again(ack)
    assert len(await broker.jobs("after")) == 1
    assert (await broker.stats("q")).done == 1


async def test_a_repeated_nack_counts_once(broker: Broker, impatient: Broker, outage: Outage) -> None:
    job = await running(broker)
    begun = asyncio.create_task(outage.starts_after("settle"))
    with pytest.raises(EngineUnavailable):
        await impatient.nack(job, "no good", delay=60)
    await begun
    await outage.ends()
    assert await again(lambda: impatient.nack(job, "no good", delay=60)) is JobState.SCHEDULED
    found = await record(broker, job.id)
    assert (found.attempts, len(found.errors)) == (1, 1)


async def test_settlements_repeated_in_another_batch_get_their_first_replies(
    broker: Broker, impatient: Broker, outage: Outage
) -> None:
    acks = [Settlement.ack(await running(broker, f"q{n}"), result=b"r") for n in range(4)]
    begun = asyncio.create_task(outage.starts_after("ack"))
    with pytest.raises(EngineUnavailable):
        await impatient.settle_many(acks[:3])
    await begun
    await outage.ends()
    results = await again(lambda: impatient.settle_many(acks[1:]))
    assert [result.applied for result in results] == [True, True, True]
    late = await again(lambda: impatient.settle_many(acks[1:]))
    assert [result.applied for result in late] == [False, False, False], "a claim is settled once"


async def test_jobs_of_a_failed_claim_are_released_by_the_next_claim(
    broker: Broker, impatient: Broker, outage: Outage
) -> None:
    """The attempt of a claim that no caller got does not count."""
    enqueued = await broker.enqueue("q", max_attempts=1)
    begun = asyncio.create_task(outage.starts_after("claim"))
    with pytest.raises(EngineUnavailable):
        await impatient.claim("q")
    await begun
    assert (await broker.stats("q")).running == 1
    await outage.ends()
    while not (jobs := await again(lambda: impatient.claim("q"))):
        await pause(0.05)  # It could not read the lost reply. The next claim reads it again.
    assert [(job.id, job.attempts) for job in jobs] == [(enqueued.id, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "logged"),
    [("claim", "no jobs can be claimed"), ("ack", "outcomes wait for the storage")],
    ids=["claim", "ack"],
)
async def test_a_worker_survives_the_outage_and_runs_every_job_once(
    broker: Broker, impatient_url: str, outage: Outage, statement: str, logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Jobs of claims whose replies were lost run after their leases."""
    app = App(impatient_url, config=BrokerConfig(retention=KEEP_ALL, reap_interval=0.2))
    runs: list[str] = []
    lost: list[object] = []

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        runs.append(ctx.job.id)

    app.on("job.lost")(lost.append)

    async with app:
        begun = asyncio.create_task(outage.starts_after(statement))
        async with working(app, lease=3):
            await broker.enqueue_many([NewJob("default", b"{}", task="work") for _ in range(10)])
            await begun
            await until(lambda: logged in caplog.text)
            await outage.ends()

            async def all_are_done() -> bool:
                return (await broker.stats("default")).done == 10

            await until(all_are_done)
        assert sorted(runs) == sorted(set(runs)), "a job was run twice"
        assert len(runs) == 10
        assert lost == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["outage", "table lock"])
async def test_running_jobs_survive_a_fault_longer_than_their_leases(
    broker: Broker, impatient_url: str, wire: Proxy, tmp_path: Path, fault: str
) -> None:
    """No lease can be renewed meanwhile. Afterwards the reap duty gives the worker the time for it."""
    app = App(impatient_url, config=BrokerConfig(retention=KEEP_ALL, reap_interval=0.1))
    finish = asyncio.Event()
    lost: list[object] = []
    app.on("job.lost")(lost.append)

    @app.task(name="long", max_attempts=1)
    async def long() -> None:
        await finish.wait()

    async with app, working(app, lease=1):
        enqueued = await broker.enqueue_many([NewJob("default", b"{}", task="long", max_attempts=1)] * 5)

        async def all_run() -> bool:
            return (await broker.stats("default")).running == 5

        await until(all_run)
        if fault == "outage":
            wire.refuse()
            wire.cut()
            await pause(5)
            await wire.accept()
        else:
            connection = await asyncpg.connect(server_url())
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE {schema_of(tmp_path)}.jobs IN ACCESS EXCLUSIVE MODE")
                await pause(5)
            await connection.close()
        await pause(2)
        jobs = [await record(broker, each.id) for each in enqueued]
        finish.set()

        async def all_are_done() -> bool:
            return (await broker.stats("default")).done == 5

        await until(all_are_done)
    assert [job.state for job in jobs] == [JobState.RUNNING] * 5
    assert lost == []
