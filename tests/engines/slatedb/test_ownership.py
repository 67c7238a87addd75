"""One process writes: refusals, take-overs, fenced owners, readers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from dayjob import (
    Broker,
    BrokerConfig,
    Closed,
    EngineFenced,
    EngineUnavailable,
    InvalidState,
    Job,
    JobState,
    NewJob,
    Retention,
)
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.opening import BEATS_MISSED, is_alive
from dayjob.engines.slatedb.values import Owner
from dayjob.model.durations import SECOND
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.process import Process, this_process
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.damage import open_thread
from tests.engines.slatedb.roles import (
    claim_and_stay,
    hold,
    read_all,
    run_worker,
    try_to_open,
    wait_for_a_job,
)
from tests.support.bound import BOUND
from tests.support.processes import Spawn, pause, until

pytestmark = pytest.mark.slow


async def test_a_second_process_is_refused_and_the_first_continues(
    url: str, broker: Broker, spawn: Spawn
) -> None:
    await broker.enqueue("q")
    refused = await (await spawn(try_to_open, url)).receive()
    assert refused.startswith("EngineUnavailable")
    assert url in refused
    assert "takeover=1" in refused
    await broker.ack((await broker.claim("q"))[0])
    assert (await broker.stats("q")).done == 1


async def test_a_take_over_fences_the_owner_and_its_late_settlement_changes_nothing(
    url: str, spawn: Spawn
) -> None:
    first = await spawn(hold, url)
    id = await first.receive()
    async with Broker(f"{url}?takeover=1", config=QUIET) as broker:
        assert await broker.reap() == 1, "the claims of the one that was fenced are orphans"
        first.proceed()
        assert await first.receive() == "EngineFenced"
        assert await first.receive() == "EngineFenced"
        assert await first.receive() == "done", "it closes all the same"
        (job,) = await broker.jobs()
        assert (job.id, job.state, job.attempts) == (id, JobState.PENDING, 1)
        assert job.last_error == "lease expired"
        assert (await broker.stats("q")).done == 0


async def test_a_waiting_process_detects_that_it_is_fenced(url: str, spawn: Spawn) -> None:
    first = await spawn(wait_for_a_job, f"{url}?beat=3600")
    assert await first.receive() == "open"
    async with Broker(f"{url}?takeover=1", config=QUIET):
        assert await first.receive() == "EngineFenced", "without a write of its own that would have failed"


async def test_a_fenced_worker_stops_and_logs_the_cause(url: str, spawn: Spawn) -> None:
    first = await spawn(run_worker, url)
    assert await first.receive() == "running"
    async with Broker(f"{url}?takeover=1", config=QUIET) as broker:
        assert await first.receive() == "EngineFenced"
        (said, *_) = [line for line in await first.receive() if "stops" in line]
        assert "another process has taken the database over" in said
        assert await first.wait() == 0
        assert await broker.reap() == 1
        assert (await broker.stats("q")).pending == 1


async def test_a_fenced_process_does_not_take_over_again(url: str, spawn: Spawn) -> None:
    broker = await Broker(f"{url}?takeover=1", config=QUIET).open()
    taker = await spawn(wait_for_a_job, f"{url}?takeover=1")
    assert await taker.receive() == "open"

    async def fenced() -> bool:
        try:
            await broker.enqueue("q")
        except EngineFenced:
            return True
        return False

    await until(fenced)
    with pytest.raises(EngineUnavailable, match=str(taker.pid)):
        await Broker(f"{url}?takeover=1", config=QUIET).open()
    await broker.close()
    with pytest.raises(EngineUnavailable, match=str(taker.pid)):
        await Broker(f"{url}?takeover=1", config=QUIET).open()
    await taker.kill()
    async with Broker(url, config=QUIET) as again:
        assert await again.queues() == []


async def test_the_death_of_the_owner_releases_the_database_and_its_claims_at_once(
    url: str, spawn: Spawn
) -> None:
    first = await spawn(claim_and_stay, url)
    id = await first.receive()
    await first.kill()
    async with Broker(url, config=QUIET) as broker:
        assert (await broker.stats("q")).running == 1
        assert await broker.reap() == 1
        assert await broker.reap() == 0
        first_again, second = await broker.claim("q", limit=2)
        assert (first_again.id, first_again.attempts, second.attempts) == (id, 2, 1)
        assert await broker.reap() == 0, "claims of this process are never orphans"


async def test_a_new_claim_of_an_orphans_job_is_not_ended(url: str, spawn: Spawn) -> None:
    first = await spawn(claim_and_stay, url)
    await first.receive()
    await first.kill()
    async with Broker(url, config=QUIET) as broker:
        [orphan] = await broker.jobs("q", JobState.RUNNING)
        await broker.release(orphan)
        jobs = await broker.claim("q", limit=2)
        assert orphan.id in [job.id for job in jobs]
        assert await broker.reap() == 0


async def test_claims_of_this_process_outlive_its_brokers(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q") for _ in range(3)])
        claimed, renewed, _ = await broker.claim("q", limit=3)
        await broker.renew(renewed, 3600)
    async with Broker(url, config=QUIET) as broker:
        assert await broker.reap() == 0
        await broker.ack(claimed)
        await broker.ack(renewed)


async def test_a_reader_reads_all_jobs_and_does_not_fence_the_owner(
    url: str, broker: Broker, spawn: Spawn
) -> None:
    await broker.enqueue("q", b"one")
    await broker.enqueue("q", b"two", delay=3600)
    await broker.pause("r")
    reader = await spawn(read_all, f"{url}?readonly=1")
    assert await reader.receive() == [{"one": "pending", "two": "scheduled"}, 1, 0, ["r"]]
    await broker.claim("q")
    await broker.resume("r")
    reader.proceed()
    assert await reader.receive() == [{"one": "running", "two": "scheduled"}, 0, 1, []]
    assert (await broker.enqueue("q")).created


async def test_a_reader_s_listing_is_consistent(url: str, broker: Broker) -> None:
    """Each job is listed once, in one state, while others are settled."""
    ids = [answer.id for answer in await broker.enqueue_many([NewJob("q", b"data") for _ in range(600)])]
    ended = asyncio.Event()

    async def settle_all() -> None:
        try:
            while jobs := await broker.claim("q", limit=20):
                await asyncio.gather(*map(broker.ack, jobs))
        finally:
            ended.set()

    settling = asyncio.create_task(settle_all())
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        while not ended.is_set():
            listed = await reader.jobs("q", limit=1000)
            assert [job.id for job in listed] == ids[len(ids) - len(listed) :]
            assert {job.payload for job in listed} <= {b"data"}
            assert not [job for job in listed if job.last_error], "none is taken for a corrupt one"
    await settling


async def test_a_reader_changes_nothing(url: str, broker: Broker) -> None:
    await broker.enqueue("q", b"x", kv={b"k": b"v"})
    async with Broker(f"{url}?readonly=1") as reader:
        for change in (reader.enqueue("q"), reader.claim("q"), reader.pause("q"), reader.kv_put(b"k", b"w")):
            with pytest.raises(InvalidState, match="readonly=1"):
                await change
        (job,) = await reader.jobs()
        assert await reader.get(job.id) == job
        assert await reader.kv_get(b"k") == b"v"
        assert await reader.promote() == await reader.reap() == await reader.sweep() == 0
    assert (await broker.stats("q")).pending == 1


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
async def test_a_wait_through_a_reader_ends_with_the_job(
    url: str, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention = Retention(done=60) if keep else Retention()
    async with Broker(url, config=BrokerConfig(duties=False, retention=retention)) as broker:
        enqueued = await broker.enqueue("q")
        (job,) = await broker.claim("q")
        async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
            assert (await reader.wait(job.id, 0.1)).status == "timed_out"
            get, found = reader._session.get, []

            async def counted(key: bytes) -> Job | None:
                found.append(await get(key))
                return found[-1]

            monkeypatch.setattr(reader._session, "get", counted)
            waiting = [asyncio.create_task(reader.wait(job.id)) for _ in range(2)]
            while len(found) < 2:
                await pause(0.01)
            assert not any(each.done() for each in waiting)
            await broker.ack(job)
            async with asyncio.timeout(BOUND):
                replies = await asyncio.gather(*waiting)
            assert {reply.status for reply in replies} == {"completed"}
            assert {reply.job is not None for reply in replies} == {keep}
            other = asyncio.create_task(reader.wait((await broker.enqueue("q")).id))
            await pause(0.1)
        with pytest.raises(Closed):
            await other
    assert enqueued.created


async def test_brokers_of_one_process_share_a_handle_however_the_path_is_written(
    url: str, path: Path
) -> None:
    async with Broker(url, config=QUIET) as first:
        async with Broker(f"file://{path}/../jobs/?flush_ms=10", config=QUIET) as second:
            await second.enqueue("q")
            assert open_thread(url).users == 2
        assert len(await first.claim("q")) == 1


async def test_brokers_on_different_event_loops_share_a_handle(url: str, broker: Broker) -> None:
    waiting = asyncio.create_task(broker.claim("q", wait=20))

    async def enqueue() -> str:
        async with Broker(url, config=QUIET) as other:
            return (await other.enqueue("q")).id

    id = await asyncio.to_thread(asyncio.run, enqueue())
    assert [job.id for job in await waiting] == [id]


def test_which_owners_are_alive() -> None:
    here = this_process()
    now = SYSTEM.now()
    owner = Owner(1, Process("elsewhere", 1, "0"), now, 10 * SECOND)
    assert is_alive(owner, here)
    assert is_alive(replace(owner, beat_us=now - (BEATS_MISSED * 10 - 1) * SECOND), here)
    assert not is_alive(replace(owner, beat_us=now - BEATS_MISSED * 10 * SECOND), here)
    assert not is_alive(replace(owner, closed=True), here)
    assert not is_alive(replace(owner, process=here), here)
    assert not is_alive(replace(owner, process=replace(here, started="another time")), here)


async def test_the_owner_writes_heartbeats(url: str) -> None:
    async with Broker(f"{url}?beat=0.1", config=QUIET):
        thread = open_thread(url)

        async def beat() -> int:
            value = await thread._database.get(keys.OWNER)
            assert value is not None
            return values.decode(values.Owner, value).beat_us

        first = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(beat(), thread._loop))  # type: ignore[arg-type]

        async def later() -> bool:
            return first < await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(beat(), thread._loop))  # type: ignore[arg-type]

        await until(later)
