"""SlateDB on S3, played by moto, behind a proxy that delays, refuses and counts requests."""

from __future__ import annotations

import asyncio
from http.client import HTTPConnection

import pytest
from msgspec.structs import replace
from slatedb import uniffi

from dayjob import Broker, ConfigError, EngineUnavailable, JobState, NewJob
from dayjob.broker.history import History
from dayjob.engines.base import ClaimRequest, DocumentWrite, RetentionTimes, SettleOp, Token, Transient
from dayjob.engines.registry import parse
from dayjob.engines.slatedb import create, keys, store_thread, values
from dayjob.engines.slatedb.engine import SlateEngine
from dayjob.engines.slatedb.opening import check_owner
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.model.durations import SECOND
from dayjob.model.lifecycle import Transition
from dayjob.runtime.clock import SYSTEM
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.damage import open_thread
from tests.engines.slatedb.roles import claim_and_stay, hold, read_all, try_to_open
from tests.engines.slatedb.s3 import BUCKET, Proxy, Server
from tests.support.arrange import KEEP_ALL, quiet
from tests.support.bound import BOUND
from tests.support.observe import check_counters, everything
from tests.support.processes import Spawn, until

pytestmark = pytest.mark.slow


@pytest.fixture
def url(base: str, proxy: Proxy) -> str:
    return f"{base}?endpoint={proxy.endpoint}&flush_ms=20"


async def test_jobs_are_stored_in_the_bucket(url: str) -> None:
    config = quiet(retention=KEEP_ALL)
    async with Broker(url, config=config) as broker:
        await broker.enqueue_many([NewJob("q", b"%d" % number, kv={b"k": b"v"}) for number in range(20)])
        first, second, third, _ = await broker.claim("q", limit=4)
        await broker.ack(first, result=b"r", enqueue=[NewJob("after")])
        await broker.nack(second, "boom", delay=60)
        await broker.dead_letter(third, "no good")
        await check_counters(broker)
        before = await everything(broker)
    async with Broker(url, config=config) as broker:
        assert await everything(broker) == before
        assert await broker.kv_get(b"k") == b"v"
        assert (await broker.stats("q")).dead == 1


async def test_a_take_over_fences_the_owner(url: str, spawn: Spawn) -> None:
    first = await spawn(hold, url)
    id = await first.receive()
    refused = await (await spawn(try_to_open, url)).receive()
    assert f"process {first.pid} has it open" in refused
    assert "only one process can: enqueue there, stop it, or take over" in refused
    async with Broker(f"{url}&takeover=1", config=QUIET) as broker:
        assert await broker.reap() == 1
        first.proceed()
        assert [await first.receive() for _ in range(3)] == ["EngineFenced", "EngineFenced", "done"]
        (job,) = await broker.jobs()
        assert (job.id, job.state, job.attempts) == (id, JobState.PENDING, 1)


async def test_the_death_of_the_owner_releases_the_database(url: str, spawn: Spawn) -> None:
    first = await spawn(claim_and_stay, url)
    await first.receive()
    await first.kill()
    async with Broker(url, config=QUIET) as broker:
        assert await broker.reap() == 1
        assert (await broker.stats("q")).pending == 2


async def test_a_reader_does_not_fence_the_owner(url: str, spawn: Spawn) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q", b"one")
        reader = await spawn(read_all, f"{url}&readonly=1")
        assert await reader.receive() == [{"one": "pending"}, 1, 0, []]
        assert (await broker.enqueue("q")).created


async def test_calls_wait_for_a_slow_store(url: str, proxy: Proxy) -> None:
    proxy.latency = 0.2
    async with Broker(url, config=QUIET) as broker:
        await asyncio.gather(*(broker.enqueue("q") for _ in range(50)))
        jobs = await broker.claim("q", limit=50)
        await asyncio.gather(*map(broker.ack, jobs))
        assert (await broker.stats("q")).done == 50


async def test_calls_wait_while_the_store_refuses_requests(url: str, proxy: Proxy) -> None:
    async with Broker(url, config=QUIET) as broker:
        proxy.failing = b"503 Slow Down"
        enqueuing = asyncio.create_task(broker.enqueue("q"))
        await refusals(proxy, 3)
        assert not enqueuing.done(), "it is not durable yet"
        proxy.failing = None
        assert (await enqueuing).created


async def test_opening_waits_while_the_store_refuses_requests(url: str, proxy: Proxy) -> None:
    proxy.failing = b"503 Slow Down"
    broker = Broker(url, config=QUIET)
    opening = asyncio.create_task(broker.open())
    await refusals(proxy, 3)
    proxy.failing = None
    await opening
    assert (await broker.enqueue("q")).created
    await broker.close()


async def refusals(proxy: Proxy, count: int) -> None:
    async def enough() -> bool:
        return proxy.refused >= count

    await until(enough)


async def test_after_a_long_outage_a_repeated_token_gets_the_stored_reply(url: str, proxy: Proxy) -> None:
    async with Broker(url, config=QUIET) as broker:
        engine, thread = broker._engine, open_thread(url)
        thread.settings = replace(thread.settings, timeout=1)  # Opening may take longer.
        await broker.enqueue("q", b"to settle")
        await broker.enqueue("q", b"to claim")
        (job,) = await broker.claim("q")
        proxy.failing = b"503 Slow Down"
        document = DocumentWrite("k", "a", None, b"1")
        tokens = [Token(b"%d" % slot, b"client", slot, 1) for slot in range(4)]
        ack = SettleOp(job.key, job.claim, Transition.ACK, RetentionTimes())
        new = broker._validator.insertion(NewJob("r"))
        attempts = await asyncio.gather(
            engine.settle([ack], token=tokens[0]),
            engine.insert([new], token=tokens[1]),
            engine.claim([ClaimRequest((("q", 60_000_000),), 1, None)], token=tokens[2]),
            engine.compare_and_set([document], token=tokens[3]),
            return_exceptions=True,
        )
        for attempt in attempts:
            assert isinstance(attempt, Transient)
            assert attempt.commit_unknown
            assert url in str(attempt)
        proxy.failing = None

        async def back() -> bool:
            try:
                await broker.kv_put(b"k", b"v")
            except EngineUnavailable:
                return False
            return True

        await until(back)
        repeated = [replace(token, repeated=True) for token in tokens]
        assert await engine.settle([ack], token=repeated[0]) == [JobState.DONE]
        assert [reply.created for reply in await engine.insert([new], token=repeated[1])] == [True]
        assert await engine.compare_and_set([document], token=repeated[3])
        assert not await engine.compare_and_set([document]), "another write"
        assert (await broker.stats("r")).pending == 1
        assert (await broker.stats("q")).done == 1
        (claimed,) = await broker.claim("q")
        assert (claimed.payload, claimed.attempts) == (b"to claim", 1), "an unconfirmed claim is released"
        await check_counters(broker)


async def test_a_missing_bucket_raises_config_error(proxy: Proxy) -> None:
    url = f"s3://nosuchbucket/jobs?endpoint={proxy.endpoint}"
    with pytest.raises(ConfigError, match="make the bucket, or correct its name") as caught:
        await Broker(url, config=QUIET).open()
    assert url in str(caught.value)


async def test_missing_permission_raises_config_error(url: str, proxy: Proxy) -> None:
    proxy.failing = b"403 Forbidden"
    with pytest.raises(ConfigError, match="allow the credentials"):
        await Broker(url, config=QUIET).open()


async def test_an_unreachable_store_raises_engine_unavailable(base: str, proxy: Proxy) -> None:
    with pytest.raises(EngineUnavailable, match="endpoint can be reached"):
        await Broker(f"{base}?endpoint=http://127.0.0.1:1&timeout=1", config=QUIET).open()


async def test_an_idle_engine_writes_nothing(
    base: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks for a take-over continue. The heartbeat interval is long, so none is written.

    The sample of the counters would be written after the minute, so its duty is off.
    """

    async def rest(_: History) -> int:
        return 3600 * SECOND

    monkeypatch.setattr(History, "sample", rest)
    async with Broker(f"{base}?endpoint={proxy.endpoint}&flush_ms=20&beat=3600") as broker:
        await broker.enqueue("q", delay=3600)
        await quiescence(proxy)
        proxy.requests.clear()

        async def read() -> bool:
            await broker.stats("q")
            await broker.jobs("q")
            return proxy.requests["GET"] >= 4

        await until(read)
        assert proxy.requests["PUT"] == proxy.requests["POST"] == proxy.requests["DELETE"] == 0


async def quiescence(proxy: Proxy) -> None:
    """Wait until a new database has finished its own writes: two reads without a write."""
    seen = (-1, -1)

    async def calm() -> bool:
        nonlocal seen
        gets, puts = proxy.requests["GET"], proxy.requests["PUT"]
        if puts != seen[1]:
            seen = (gets, puts)
        return gets >= seen[0] + 2

    await until(calm)


async def test_the_log_stays_short(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opens the database after a crash replays the log objects since the last table."""
    monkeypatch.setattr(store_thread, "_LOG_OBJECTS", 5)
    async with Broker(url, config=QUIET) as broker:
        settings = open_thread(url).settings
        admin = uniffi.AdminBuilder(settings.path, settings.resolve()).build()
        first = (await admin.read_manifest(None)).replay_after_wal_id
        for _ in range(12):
            await broker.enqueue("q")

        async def shortened() -> bool:
            return bool((await admin.read_manifest(None)).replay_after_wal_id >= first + 10)

        await until(shortened)
        assert (await broker.stats("q")).pending == 12


async def test_a_log_that_processes_left_which_ended_early_is_shortened(
    url: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them flushes too little for a table, and the next one replays the log of all."""
    crashed = await spawn(claim_and_stay, url)
    await crashed.receive()
    await crashed.kill()
    left = await settings_of(url).log_objects()
    assert left >= 3
    monkeypatch.setattr(store_thread, "_LOG_OBJECTS", left)
    async with Broker(url, config=QUIET):  # It adds an object of its own.

        async def shortened() -> bool:
            return await settings_of(url).log_objects() < left

        await until(shortened)


async def test_the_owner_is_read_from_the_last_log_object_after_a_crash(
    url: str, proxy: Proxy, spawn: Spawn
) -> None:
    """A reader would read every object of the log, which the writer replays afterwards."""
    crashed = await spawn(claim_and_stay, url)
    await crashed.receive()
    await crashed.kill()
    objects: set[str] = set()

    def record(method: str, path: str) -> bool:
        if method == "GET" and "/wal/" in path and path.partition("?")[0].endswith(".sst"):
            objects.add(path)
        return False

    proxy.failing, proxy.fails = b"500 Unused", record
    owner = await check_owner(settings_of(url))
    assert owner is not None
    assert owner.process.pid == crashed.pid
    assert len(objects) == 1
    async with Broker(url, config=QUIET) as broker:
        assert len(objects) >= 4, "the writer replays the log"
        assert await broker.reap() == 1
        assert (await broker.stats("q")).pending == 2


@pytest.mark.parametrize("layout", [0, keys.VERSION + 1], ids=["unknown", "newer"])
async def test_the_layout_of_an_owner_in_the_log_is_checked(
    url: str, monkeypatch: pytest.MonkeyPatch, layout: int
) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
        [row] = [row for row in await settings_of(url).last_log_rows() if row.key == keys.OWNER]
        assert row.value is not None
        value = values.encode(replace(values.decode(values.Owner, row.value), layout=layout))

    async def rows(_: SlateSettings) -> list[uniffi.RowEntry]:
        return [
            uniffi.RowEntry(
                kind=row.kind,
                key=keys.OWNER,
                value=value,
                seq=row.seq,
                create_ts=row.create_ts,
                expire_ts=row.expire_ts,
            )
        ]

    monkeypatch.setattr(SlateSettings, "last_log_rows", rows)
    if layout:
        with pytest.raises(ConfigError, match="from a newer dayjob"):
            await check_owner(settings_of(url))
    else:
        owner = await check_owner(settings_of(url))
        assert owner is not None
        assert owner.closed, "it is read from the tables"


async def test_a_log_that_its_owner_shortens_during_the_look_is_looked_at_again(
    url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has written the first objects to tables and removed them, after the start was read."""
    settings = settings_of(url)
    async with Broker(url, config=QUIET) as broker:
        for _ in range(3):
            await broker.enqueue("q")
        last = await settings._log_start()
        assert last is not None
    start = await settings._log_start()
    assert start is not None
    assert start > last, "closing writes all to tables"
    prefix = f"{url.partition('?')[0].rpartition('/')[2]}/wal/"
    for number in range(1, start):
        remove_object(server, f"{prefix}{number:020}.sst")
    right, starts = SlateSettings._log_start, [0]

    async def log_start(self: SlateSettings) -> int | None:
        return starts.pop() if starts else await right(self)

    monkeypatch.setattr(SlateSettings, "_log_start", log_start)
    owner = await check_owner(settings)
    assert owner is not None
    assert owner.closed
    assert not starts, "the first look was at a log that is gone"


def remove_object(server: Server, name: str) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    connection.request("DELETE", f"/{BUCKET}/{name}", headers={"Authorization": "AWS testing:testing"})
    assert connection.getresponse().status == 204
    connection.close()


def settings_of(url: str) -> SlateSettings:
    engine = create(parse(url), SYSTEM)
    assert isinstance(engine, SlateEngine)
    return engine.settings
