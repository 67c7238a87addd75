"""Calls survive outages of the server, or end in a clear error; no write is lost or applied twice."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, ConfigError, EngineUnavailable, Job, NewJob, Settlement
from tests.engines.redis.conftest import QUIET, SHORT
from tests.support.arrange import claim_one
from tests.support.bound import BOUND
from tests.support.observe import everything
from tests.support.servers.proxy import Proxy, proxied
from tests.support.servers.redis import Server, client, running_server
from tests.support.waiting import with_timeout
from tests.support.workers import pause


async def waiting_claim(broker: Broker, queue: str) -> asyncio.Task[list[Job]]:
    """Return a claim that is registered as waiting."""
    task = asyncio.create_task(broker.claim(queue, wait=60))
    while queue not in broker._session.waiting_claims.by_queue:
        await asyncio.wait({task}, timeout=0.01)
    return task


async def test_a_restart_loses_no_acknowledged_write(server: Server, broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q", b"%d" % number, kv={b"k": b"v"}) for number in range(20)])
    acked, running = await broker.claim("q", limit=2)
    await broker.ack(acked)
    await broker.enqueue("later", delay=60, dedup_key="k")
    await broker.pause("paused")
    before = await everything(broker)
    await asyncio.to_thread(server.restart)
    assert await with_timeout(everything(broker)) == before
    assert not (await broker.enqueue("later", dedup_key="k")).created
    await broker.ack(running)
    await broker.resume("paused")


async def test_a_waiting_claim_gets_a_job_after_a_restart(server: Server, broker: Broker) -> None:
    waiting = await waiting_claim(broker, "q")
    await asyncio.to_thread(server.restart)
    async with Broker(server.url, config=QUIET) as other:
        await other.enqueue("q")
    assert len(await with_timeout(waiting)) == 1


async def test_scripts_are_sent_again_after_a_flush(server: Server, broker: Broker) -> None:
    await broker.enqueue("q")
    with client(server.url) as connection:
        connection.script_flush()
    await broker.enqueue("q")
    claims = await broker.claim("q", limit=2)
    with client(server.url) as connection:
        connection.script_flush()
    results = await broker.settle_many([Settlement.ack(claim) for claim in claims])
    assert [result.applied for result in results] == [True, True]


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
async def test_killed_connections_are_opened_again(server: Server, broker: Broker, kind: str) -> None:
    waiting = await waiting_claim(broker, "q")
    with client(server.url) as connection:
        assert connection.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes") > 0
    async with Broker(server.url, config=QUIET) as other:
        await other.enqueue("q")
    [claim] = await with_timeout(waiting)
    await broker.ack(claim)


async def test_a_call_waits_for_a_paused_server(server: Server, broker: Broker) -> None:
    await broker.enqueue("q")
    claim = await claim_one(broker)
    with client(server.url) as connection:
        connection.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        acking = asyncio.create_task(broker.ack(claim))
        await asyncio.wait({acking}, timeout=0.2)
        assert not acking.done()
        connection.execute_command("CLIENT", "UNPAUSE")
    await with_timeout(acking)
    assert (await broker.stats("q")).done == 1


async def test_a_call_to_a_server_paused_for_too_long_fails_and_its_repetition_is_applied_once(
    server: Server, proxy: Proxy
) -> None:
    async with Broker(proxy.url("dayjob", SHORT), config=QUIET) as broker:
        await broker.enqueue("q")
        claim = await claim_one(broker)
        with client(server.url) as connection:
            connection.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            with pytest.raises(EngineUnavailable, match="no reply"):
                await with_timeout(broker.ack(claim, enqueue=[NewJob("after")]))
            connection.execute_command("CLIENT", "UNPAUSE")
        await with_timeout(broker.ack(claim, enqueue=[NewJob("after")]))
        assert (await broker.stats("after")).pending == 1


async def test_a_full_server_refuses_new_jobs_and_settles_running_ones(
    server: Server, broker: Broker
) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(7)])
    acked, nacked, chained, died, renewed, released = await broker.claim("q", limit=6)
    before = await broker.all_stats()
    with client(server.url) as connection:
        connection.config_set("maxmemory", 1)
        for attempt in (
            lambda: broker.enqueue("q"),
            lambda: broker.enqueue_many([NewJob("new"), NewJob("q", kv={b"k": b"v"})]),
            lambda: broker.kv_put(b"k", b"v"),
        ):
            with pytest.raises(EngineUnavailable, match="memory is full"):
                await with_timeout(attempt())
        assert await broker.all_stats() == before
        await broker.ack(acked)
        assert await broker.nack(nacked, "boom", delay=5) == "scheduled"
        await broker.ack(chained, enqueue=[NewJob("after")], kv={b"done": b"1"})
        await broker.dead_letter(died, "x")
        await broker.renew(renewed)
        assert await broker.cancel(renewed.id) == "requested"
        await broker.release(released)
        claims = await broker.claim("q", limit=5)
        assert len(claims) == 2
        async with Broker(server.url, config=QUIET) as other:
            await other.settle_many([Settlement.ack(claim) for claim in claims])
        connection.config_set("maxmemory", 0)
    stats = await broker.stats("q")
    assert (stats.done, stats.running, stats.scheduled, stats.dead) == (4, 1, 1, 1)
    assert await broker.kv_get(b"done") == b"1"
    assert await broker.kv_get(b"k") is None
    assert (await broker.enqueue("q")).created


async def test_a_call_to_a_replica_waits_until_it_is_promoted(server: Server, broker: Broker) -> None:
    with client(server.url) as connection:
        connection.execute_command("REPLICAOF", "127.0.0.1", 1)
        enqueuing = asyncio.create_task(broker.enqueue("q"))
        await asyncio.wait({enqueuing}, timeout=0.2)
        assert not enqueuing.done()
        connection.execute_command("REPLICAOF", "NO", "ONE")
    assert (await with_timeout(enqueuing)).created
    assert (await broker.stats("q")).pending == 1


async def test_a_call_to_a_replica_that_stays_one_fails_with_the_reason(server: Server) -> None:
    async with Broker(f"{server.url}?timeout=2", config=QUIET) as broker:
        with client(server.url) as connection:
            connection.execute_command("REPLICAOF", "127.0.0.1", 1)
            with pytest.raises(EngineUnavailable, match=r"no reply .*READONLY"):
                await with_timeout(broker.enqueue("q"))
            connection.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    "reply",
    [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "MASTERDOWN Client with MASTER is down",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk",
    ],
    ids=lambda reply: reply.split()[0],
)
async def test_a_transient_error_is_repeated(through: Broker, proxy: Proxy, reply: str) -> None:
    proxy.replies = [f"-{reply}\r\n".encode()] * 3
    assert (await with_timeout(through.enqueue("q"))).created
    assert proxy.replies == []


async def test_a_call_without_rights_fails_and_succeeds_after_they_are_restored(
    server: Server, broker: Broker
) -> None:
    await broker.enqueue("q")
    claim = await claim_one(broker)
    with client(server.url) as connection:
        connection.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
        with pytest.raises(EngineUnavailable, match="refuses this user"):
            await with_timeout(broker.ack(claim))
        connection.execute_command("ACL", "SETUSER", "default", "+evalsha", "+eval")
    await with_timeout(broker.ack(claim))


async def test_a_call_that_the_server_refuses_fails_at_once(through: Broker, proxy: Proxy) -> None:
    proxy.replies = [b"-ERR unknown command\r\n"]
    with pytest.raises(EngineUnavailable, match="unknown command"):
        await with_timeout(through.enqueue("q"))


async def test_a_moved_reply_leads_to_the_other_node(server: Server, through: Broker, proxy: Proxy) -> None:
    async with proxied(server.socket) as other:
        proxy.replies = [f"-MOVED 1234 127.0.0.1:{other.port}\r\n".encode()]
        assert (await with_timeout(through.enqueue("q"))).created
        proxy.replies = [b"-ERR the wrong node\r\n"]
        assert (await with_timeout(through.enqueue("q"))).created
        proxy.replies.clear()
    assert (await with_timeout(through.stats("q"))).pending == 2


async def test_a_cluster_holds_all_keys_in_one_slot() -> None:
    async with running_server(port="0", cluster_enabled="yes") as server:
        with client(server.url) as connection:
            connection.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            async with asyncio.timeout(BOUND):
                while b"cluster_state:ok" not in connection.execute_command("CLUSTER", "INFO"):
                    await pause(0.05)
        async with Broker(server.url, config=QUIET) as broker:
            await broker.enqueue_many([NewJob("q", dedup_key="k", kv={b"k": b"v"}), NewJob("r", delay=1e-6)])
            await broker.promote()
            claims = await broker.claim(["q", "r"], limit=2)
            await broker.settle_many([Settlement.ack(claims[0]), Settlement.nack(claims[1], "x")])
            assert (await broker.stats("q")).done == 1


async def test_opening_an_unreachable_server_fails_within_the_timeout_and_hides_the_password() -> None:
    url = "redis://ada:s3cr%40t@127.0.0.1:1/0?timeout=0.2"
    with pytest.raises(EngineUnavailable, match="no reply") as caught:
        await with_timeout(Broker(url).open())
    assert "s3cr" not in str(caught.value)
    assert "redis://ada:***@127.0.0.1:1/0" in str(caught.value)


@pytest.mark.parametrize("user", ["", ":wr0ng@", "ada:wr0ng@"])
async def test_opening_with_a_refused_user_is_a_config_error(user: str) -> None:
    async with running_server(requirepass="s3cret") as server, proxied(server.socket) as proxy:
        url = proxy.url("dayjob").replace("127.0.0.1", f"{user}127.0.0.1")
        with pytest.raises(ConfigError, match="refuses this user") as caught:
            await with_timeout(Broker(url).open())
        assert "wr0ng" not in str(caught.value)
        allowed = proxy.url("dayjob").replace("127.0.0.1", ":s3cret@127.0.0.1")
        async with Broker(allowed, config=QUIET) as broker:
            await broker.enqueue("q")
            assert "s3cret" not in repr(broker._engine.__dict__)
