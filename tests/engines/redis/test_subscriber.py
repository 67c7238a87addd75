"""Notifications come from the server; without a subscription, the broker polls."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, EngineUnavailable, NewJob
from tests.engines.redis.conftest import QUIET, SHORT
from tests.engines.redis.test_outages import waiting_claim
from tests.support.arrange import claim_one
from tests.support.bound import BOUND
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client
from tests.support.waiting import with_timeout
from tests.support.workers import pause


@pytest.mark.parametrize("command", ["subscribe", "blpop"])
async def test_without_the_right_to_a_command_of_the_subscription_the_broker_polls(
    server: Server, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    with client(server.url) as connection:
        connection.execute_command("ACL", "SETUSER", "default", f"-{command}")
    async with Broker(server.url, config=QUIET) as broker, Broker(server.url, config=QUIET) as other:
        waiting = await waiting_claim(broker, "q")
        enqueued = await other.enqueue("q")
        [claim] = await with_timeout(waiting)
        done = asyncio.create_task(other.wait(enqueued.id, 60))
        await other.cancel(claim.id)
        await with_timeout(claim.cancel_token.wait())
        await broker.ack(claim)
        assert (await with_timeout(done)).status == "completed"
    assert f"'{command}'" in caplog.text


async def test_a_subscription_without_messages_stays_open(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits for hand-offs end and begin again, and each end is a sign of life."""
    monkeypatch.setattr("dayjob.engines.redis.subscriber._HANDOFF_WAIT", 0.1)
    monkeypatch.setattr("dayjob.engines.redis.subscriber.SILENCE", 2.0)
    async with Broker(server.url, config=QUIET) as broker:
        waiting = await waiting_claim(broker, "q")
        with client(server.url) as connection:
            [before] = connection.client_list("pubsub")
            await pause(3)
            [after] = connection.client_list("pubsub")
        assert before["id"] == after["id"]
        async with Broker(server.url, config=QUIET) as other:
            await other.enqueue("q")
        assert len(await with_timeout(waiting)) == 1


async def test_a_silent_subscription_is_replaced(
    server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.engines.redis.subscriber._HANDOFF_WAIT", 0.1)
    monkeypatch.setattr("dayjob.engines.redis.subscriber.SILENCE", 0.5)
    async with Broker(proxy.url("dayjob"), config=QUIET) as broker:
        await broker.claim("q")
        proxy.stall()
        with client(server.url) as connection:
            [before] = connection.client_list("pubsub")
            async with asyncio.timeout(BOUND):
                while before["id"] in [entry["id"] for entry in connection.client_list("pubsub")]:
                    await pause(0.01)
            proxy.resume()
            async with asyncio.timeout(BOUND):
                while not connection.client_list("pubsub"):
                    await pause(0.01)


async def test_a_silent_server_delays_the_first_claim_by_the_timeout_only(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first claim waits for the subscription."""
    monkeypatch.setattr("dayjob.engines.redis.subscriber.SILENCE", 3600.0)
    async with Broker(proxy.url("dayjob", SHORT), config=QUIET) as broker:
        proxy.stall()
        with pytest.raises(EngineUnavailable):
            await with_timeout(broker.claim("q"))
        proxy.resume()


async def test_a_producer_needs_one_connection(server: Server) -> None:
    """A process that only enqueues and reads does not wait, so it does not subscribe."""
    async with Broker(server.url, config=QUIET) as broker:
        for _ in range(5):
            await broker.get((await broker.enqueue("q")).id)
            await broker.stats("q")
        with client(server.url) as connection:
            names = [entry["name"] for entry in connection.client_list()]
            assert names.count("dayjob") == 1
            assert connection.client_list("pubsub") == []


async def test_one_subscription_serves_all_waiting_claims(server: Server, broker: Broker) -> None:
    waiting = [await waiting_claim(broker, f"q{number}") for number in range(5)]
    with client(server.url) as connection:
        assert len(connection.client_list("pubsub")) == 1
    async with Broker(server.url, config=QUIET) as other:
        for number in range(5):
            await other.enqueue(f"q{number}")
    assert [len(await with_timeout(claims)) for claims in waiting] == [1] * 5


async def test_a_batch_publishes_one_message(server: Server, broker: Broker) -> None:
    await broker.enqueue("q")
    with client(server.url) as connection:
        subscription = connection.pubsub()
        subscription.subscribe("{dayjob}:changes", "{dayjob}:ends")
        for _ in range(2):
            assert subscription.get_message(timeout=5)["type"] == "subscribe"
        claim = await claim_one(broker)
        await broker.enqueue_many([NewJob("a:b"), NewJob("c"), NewJob("c", delay=5)])
        await broker.ack(claim)
        messages = [subscription.get_message(timeout=5) for _ in range(2)]
        subscription.close()
    flags, *queues = messages[0]["data"].split(b"\0")
    assert (flags, sorted(queues)) == (b"d", [b"a:b", b"c"])
    assert messages[1]["data"] == claim.key


async def test_closing_ends_the_subscription(server: Server) -> None:
    broker = await Broker(server.url, config=QUIET).open()
    await broker.claim("q")
    await broker.close()
    with client(server.url) as connection:
        async with asyncio.timeout(BOUND):
            while any(entry["name"] == "dayjob" for entry in connection.client_list()):
                await pause(0.01)
