"""The first process that opens an older layout migrates it; a newer one is refused."""

from __future__ import annotations

import asyncio
from struct import Struct as Layout
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, ConfigError, EngineUnavailable, LeaseLost, NewJob
from dayjob.engines.base import DocumentWrite, Progress
from dayjob.engines.redis import migration
from dayjob.engines.redis.client import Client
from dayjob.engines.redis.keys import LAYOUT, RENAMED, Keys
from dayjob.engines.redis.scripts import script
from dayjob.model.job import NO_CLAIM, id_key
from tests.engines.redis.conftest import QUIET
from tests.support.arrange import KEEP_ALL, cancelled, claim_one, dead, done, record
from tests.support.observe import everything
from tests.support.servers.redis import Server, client
from tests.support.servers.redis_audit import DAMAGED

KEYS = Keys("dayjob")
HEAD = Layout(">BBBIIIQ16sqqqqqqqHHHIIII")
EPOCH = 7
"""The epoch of the claimed jobs of an older layout."""


def first_layout(server: Server) -> None:
    """Turn the layout into layout 1, which has no documents and no index of dead jobs."""
    second_layout(server)
    with client(server.url) as connection:
        assert not connection.exists(KEYS.named("notes"))
        connection.delete(KEYS.named("deaths"))
        connection.set(KEYS.layout, 1)


def second_layout(server: Server) -> None:
    """Turn the layout into layout 2, which has other names of some keys."""
    third_layout(server)
    with client(server.url) as connection:
        for old, new in RENAMED.items():
            if connection.exists(KEYS.named(new)):
                connection.rename(KEYS.named(new), KEYS.named(old))
        connection.set(KEYS.layout, 2)


def fifth_layout(server: Server) -> None:
    """Turn the layout into layout 5, whose records, payloads and results have no salts."""
    with client(server.url) as connection:
        payloads = connection.hgetall(KEYS.payloads)
        for id, result in connection.hgetall(KEYS.results).items():
            connection.hset(KEYS.results, id, result[: -result[-2]])
        for id, record in connection.hgetall(KEYS.jobs).items():
            *head, _ = HEAD.unpack_from(record)
            head[2] %= 64  # It has no flag for a result with a salt.
            facts_at = HEAD.size + sum(head[-6:])
            *facts, salt = msgspec.msgpack.decode(record[facts_at:])
            payload = payloads.get(id, b"")
            if payload:
                assert payload.endswith(salt)
                payload = payload[: -len(salt)]
                connection.hset(KEYS.payloads, id, payload)
            parts = (
                HEAD.pack(*head, len(payload)),
                record[HEAD.size : facts_at],
                msgspec.msgpack.encode(facts),
            )
            connection.hset(KEYS.jobs, id, b"".join(parts))
        connection.set(KEYS.layout, 5)


def third_layout(server: Server) -> None:
    """Turn the layout into layout 3, whose records include payloads and results, and no claims."""
    fifth_layout(server)
    with client(server.url) as connection:
        payloads, results = connection.hgetall(KEYS.payloads), connection.hgetall(KEYS.results)
        for id, record in connection.hgetall(KEYS.jobs).items():
            connection.hset(KEYS.jobs, id, old_record(record, payloads.get(id, b""), results.get(id, b"")))
        connection.delete(KEYS.payloads, KEYS.results)
        connection.set(KEYS.layout, 3)


def old_record(record: bytes, payload: bytes, result: bytes) -> bytes:
    old = Layout(">BBBIIIIqqqqqqqHHHIIII")
    _, state, flags, priority, attempts, most, _, _, *numbers, error, errors, progress, _ = HEAD.unpack_from(
        record
    )
    progress_at = HEAD.size + sum(numbers[-3:]) + error + errors
    epoch = EPOCH if attempts else 0
    facts_at = progress_at + progress
    task, tenant, headers, small = msgspec.msgpack.decode(record[facts_at:])
    return b"".join([
        old.pack(
            1, state, flags, priority, attempts, most, epoch, *numbers, error, errors, len(result), progress
        ),
        record[HEAD.size : progress_at], result,
        record[progress_at:facts_at], msgspec.msgpack.encode([task, payload or small, tenant, headers]),
    ])  # fmt: skip


async def stored(broker: Broker) -> dict[str, Any]:
    """Return the state, with the epochs that an older layout has."""
    state = await everything(broker)
    for job in state["jobs"]:
        job["epoch"] = EPOCH if job["attempts"] else 0
    return state


async def test_a_new_namespace_has_our_layout(server: Server, broker: Broker) -> None:
    with client(server.url) as connection:
        assert connection.get(KEYS.layout) == b"%d" % LAYOUT == b"6"


async def test_the_first_layout_is_migrated_and_keeps_its_jobs(server: Server) -> None:
    async with Broker(server.url, config=QUIET) as broker:
        await broker.enqueue("q", b"kept", dedup_key="k", kv={b"k": b"v"})
        before = await everything(broker)
    first_layout(server)
    brokers = [Broker(server.url, config=QUIET) for _ in range(8)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    with client(server.url) as connection:
        assert connection.get(KEYS.layout) == b"6"
    assert await everything(brokers[0]) == before
    written = [broker._engine.compare_and_set([DocumentWrite("k", "a", None, b"1")]) for broker in brokers]
    assert (await asyncio.gather(*written)).count(True) == 1
    for broker in brokers:
        await broker.close()


@pytest.mark.parametrize("size", [0, 10, 300, 70_000, 1_000_000])
async def test_payloads_and_results_of_the_third_layout_are_moved(server: Server, size: int) -> None:
    """Each size has another encoding; the pages of the largest are bounded by bytes."""
    number = 20 if size == 1_000_000 else 600
    async with Broker(server.url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        options: dict[str, Any] = {"task": "t" * (size % 99), "tenant": "acme", "headers": {"h": "v"}}
        await broker.enqueue_many([NewJob("q", bytes(size), **options) for _ in range(number)])
        claims = await broker.claim("q", limit=5)
        await broker.ack(claims[0], result=bytes(size))
        await broker.ack(claims[1])
        await broker.nack(claims[2], "boom")
        await broker.record_progress([Progress(claims[3].key, claims[3].claim, 0.5, "half")])
        before = await stored(broker)
    third_layout(server)
    brokers = [Broker(server.url, config=QUIET) for _ in range(3)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    with client(server.url) as connection:
        assert connection.get(KEYS.layout) == b"6"
        assert connection.hlen(KEYS.payloads) == (number if size else 0)
    assert await stored(brokers[0]) == before
    with pytest.raises(LeaseLost):
        await brokers[0].ack(claims[3])
    assert [len(job.payload) for job in await brokers[1].claim("q")] == [size]
    for broker in brokers:
        await broker.close()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_layout_without_salts_only_gets_another_version(server: Server, version: int) -> None:
    """Layout 4 has no limits and turns either. None of its jobs is read."""
    payloads = [b"", bytes(range(256)) * 2, bytes(range(256)) * 20]
    async with Broker(server.url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q", payload) for payload in payloads])
        (claim,) = await broker.claim("q")
        before = await everything(broker)
    fifth_layout(server)
    with client(server.url) as connection:
        connection.set(KEYS.layout, version)
        connection.config_resetstat()
        async with Broker(server.url, config=QUIET) as broker:
            assert connection.get(KEYS.layout) == b"6"
            assert "cmdstat_zrangebylex" not in connection.info("commandstats")
            assert await everything(broker) == before
            await broker.release(claim)
            await broker.enqueue_many([NewJob("q", payload) for payload in payloads])
            claims = await broker.claim("q", limit=9)
            assert [job.payload for job in claims] == payloads * 2
            for job in claims:
                await broker.dead_letter(job, "no good")
            assert await broker.requeue_dead("q") == 6
            assert [job.payload for job in await broker.claim("q", limit=9)] == payloads * 2


async def test_a_claim_of_the_third_layout_ends_with_its_lease(server: Server) -> None:
    """It has no key, so no process can settle it."""
    async with Broker(server.url, config=QUIET) as broker:
        await broker.enqueue("q")
        claim = await claim_one(broker, lease=1e-6)
    third_layout(server)
    async with Broker(server.url, config=QUIET) as broker:
        assert (await record(broker, claim.id)).epoch == EPOCH
        for stale in (claim, replace(claim, claim=NO_CLAIM)):
            with pytest.raises(LeaseLost):
                await broker.ack(stale)
        assert await broker.reap() == 1
        again = await claim_one(broker)
        assert (again.id, again.attempts) == (claim.id, 2)
        await broker.ack(again)


async def test_a_damaged_record_of_the_third_layout_is_quarantined(server: Server) -> None:
    async with Broker(server.url, config=QUIET) as broker:
        first, second = await broker.enqueue_many([NewJob("q", b"first"), NewJob("q", b"second")])
    third_layout(server)
    with client(server.url) as connection:
        DAMAGED.add(id_key(first.id))
        connection.hset(KEYS.jobs, id_key(first.id), connection.hget(KEYS.jobs, id_key(first.id))[:-3])
    async with Broker(server.url, config=QUIET) as broker:
        assert [job.id for job in await broker.claim("q", limit=2)] == [second.id]
        assert [job.id for job in await broker.dead_jobs("q")] == [first.id]


async def test_the_keys_of_the_second_layout_are_renamed(server: Server) -> None:
    async with Broker(server.url, config=QUIET) as broker:
        await broker.enqueue("q")
        claim = await claim_one(broker)
        await broker.cancel(claim.id)
        id = await dead(broker)
        assert await broker._engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
        before = await stored(broker)
    second_layout(server)
    brokers = [Broker(server.url, config=QUIET) for _ in range(3)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    for broker in brokers:
        assert await stored(broker) == before
        assert [key for key, _ in await broker._engine.cancel_requests()] == [claim.key]
        assert [job.id for job in await broker.latest_dead()] == [id]
        assert [document.value for document in (await broker._engine.documents("k"))[1]] == [b"1"]
        await broker.close()
    with client(server.url) as connection:
        assert connection.get(KEYS.layout) == b"6"
        assert not connection.exists(*(KEYS.named(old) for old in RENAMED))


@pytest.mark.parametrize("part", [1, 4, 5, 250])
async def test_dead_jobs_of_the_first_layout_are_indexed(
    server: Server, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(migration, "_PAGE", part)
    async with Broker(server.url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        for queue in ("b", "a", "b", "c", "a"):
            await dead(broker, queue)
            await done(broker, queue)
            await cancelled(broker, queue)
        before = [await broker.latest_dead(queue) for queue in (None, "a", "b", "c")]
    first_layout(server)
    brokers = [Broker(server.url, config=QUIET) for _ in range(3)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    for broker in brokers:
        found = [await broker.latest_dead(queue) for queue in (None, "a", "b", "c")]
        assert [[job.id for job in jobs] for jobs in found] == [[job.id for job in jobs] for jobs in before]
        await broker.close()


async def test_an_interrupted_index_is_completed_by_the_next_opening(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is set only after the whole index is built; jobs may be requeued in between."""
    async with Broker(server.url, config=QUIET) as broker:
        ids = [await dead(broker) for _ in range(4)]
    first_layout(server)
    monkeypatch.setattr(migration, "_PAGE", 2)
    run = Client.run_idempotent
    calls = 0

    async def interrupted(client: Client, verb: str, *arguments: bytes | str | int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:  # The first call moves payloads.
            raise EngineUnavailable("the server is gone")
        return await run(client, verb, *arguments)

    monkeypatch.setattr(Client, "run_idempotent", interrupted)
    with pytest.raises(EngineUnavailable):
        await Broker(server.url, config=QUIET).open()
    with client(server.url) as connection:
        assert connection.get(KEYS.layout) == b"1"
    async with Broker(server.url, config=QUIET) as broker:
        assert [job.id for job in await broker.latest_dead()] == ids[::-1]


async def test_a_full_server_is_migrated(server: Server, broker: Broker) -> None:
    id = await dead(broker)
    first_layout(server)
    with client(server.url) as connection:
        connection.config_set("maxmemory", 1)
        async with Broker(server.url, config=QUIET) as newer:
            assert connection.get(KEYS.layout) == b"6"
            assert [job.id for job in await newer.latest_dead()] == [id]


async def test_a_layout_that_newer_code_migrated_first_is_not_lowered(server: Server, broker: Broker) -> None:
    """Newer code migrates between our read of the version and our migration."""
    with client(server.url) as connection:
        connection.set(KEYS.layout, 7)
        assert connection.eval(script("migrate").source, 1, KEYS.layout, LAYOUT) == b"7"
        assert connection.get(KEYS.layout) == b"7"


async def test_code_that_supports_only_the_first_layout_refuses_ours(
    server: Server, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "LAYOUT", 1)
    with pytest.raises(ConfigError, match="have layout 6 and this dayjob supports up to 1: upgrade dayjob"):
        await Broker(server.url, config=QUIET).open()
