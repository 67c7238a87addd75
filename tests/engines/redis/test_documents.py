"""Documents with lost replies and on a full server; and the reads of reclaim and position."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import Broker, EngineUnavailable, NewJob
from dayjob.engines.base import DocumentWrite, Insertion
from dayjob.engines.redis.keys import Keys
from dayjob.model.job import id_key
from dayjob.runtime.signals import documents_topic
from tests.engines.redis.conftest import QUIET
from tests.support.arrange import claim_one
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client
from tests.support.waiting import with_timeout

FIRST = DocumentWrite("k", "a", None, b"1")


def insertion(broker: Broker, **options: Any) -> Insertion:
    return broker._validator.insertion(NewJob("q", **options))


async def values(broker: Broker, kind: str = "k") -> dict[str, bytes]:
    return {document.name: document.value for document in (await broker._engine.documents(kind))[1]}


# Lost replies.


@pytest.mark.parametrize("times", [1, 3])
async def test_a_write_whose_reply_is_lost_is_applied_once_and_succeeds(
    through: Broker, proxy: Proxy, times: int
) -> None:
    storage = through._session.storage
    proxy.losing = times
    assert await with_timeout(storage.compare_and_set([FIRST], [insertion(through)]))
    assert (await through.stats("q")).pending == 1
    for write in (DocumentWrite("k", "a", b"1", b"2"), DocumentWrite("k", "a", b"2", None)):
        proxy.losing = times
        assert await with_timeout(storage.compare_and_set([write]))
    assert await values(through) == {}
    assert proxy.lost == 3 * times


async def test_a_refused_write_whose_reply_is_lost_is_refused_again(through: Broker, proxy: Proxy) -> None:
    await through._engine.compare_and_set([FIRST])
    proxy.losing = 1
    assert not await with_timeout(through._session.storage.compare_and_set([FIRST], [insertion(through)]))
    assert proxy.lost == 1
    assert await through.jobs() == []


async def test_a_write_that_was_undone_before_its_repetition_is_not_applied_again(
    through: Broker, broker: Broker, proxy: Proxy
) -> None:
    """The reply is lost, another client removes the document, and only then is the call repeated."""
    proxy.losing = 1
    with broker._engine.signals.listen([documents_topic("k")]) as announced:
        await broker._engine.documents("k")
        writing = asyncio.create_task(through._session.storage.compare_and_set([FIRST], announce=True))
        await with_timeout(announced.wait())
        assert await broker._engine.compare_and_set([DocumentWrite("k", "a", b"1", None)])
    assert await with_timeout(writing)
    assert await values(broker) == {}


async def test_reclaimed_claims_are_counted_once(through: Broker, proxy: Proxy) -> None:
    await through.enqueue_many([NewJob("q"), NewJob("q")])
    await through.claim("q", limit=2, worker="gone")
    proxy.losing = 1
    assert await with_timeout(through.reclaim_from(["gone"])) == 2
    assert proxy.lost == 1
    assert [len(job.errors) for job in await through.jobs()] == [1, 1]


# A full server.


async def test_a_full_server_accepts_documents_and_refuses_jobs(server: Server, broker: Broker) -> None:
    engine = broker._engine
    await engine.compare_and_set([DocumentWrite("k", "old", None, b"1")])
    await broker.enqueue("q")
    await claim_one(broker)
    with client(server.url) as connection:
        connection.config_set("maxmemory", 1)
        async with Broker(server.url, config=QUIET) as other:
            assert await other._engine.compare_and_set([DocumentWrite("k", "new", None, b"1")])
            assert await other._engine.compare_and_set([DocumentWrite("k", "new", b"1", b"22")])
            assert await other._engine.compare_and_set([DocumentWrite("k", "old", b"1", None)], announce=True)
        with pytest.raises(EngineUnavailable, match="memory is full"):
            await with_timeout(
                engine.compare_and_set([DocumentWrite("k", "new", b"22", None)], [insertion(broker)])
            )
        assert await values(broker) == {"new": b"22"}
        assert len(await engine.reclaim(["w"], 10)) == 1
        connection.config_set("maxmemory", 0)
    stats = await broker.stats("q")
    assert (stats.pending, stats.running) == (1, 0)


# Announcements.


async def test_only_an_announced_write_is_published(server: Server, broker: Broker) -> None:
    engine = broker._engine
    with client(server.url) as connection:
        subscription = connection.pubsub()
        subscription.subscribe("{dayjob}:changes", "{dayjob}:ends")
        for _ in range(2):
            assert subscription.get_message(timeout=5)["type"] == "subscribe"
        await engine.compare_and_set([FIRST])
        assert not await engine.compare_and_set([FIRST], [insertion(broker)], announce=True)
        await engine.compare_and_set([], announce=True)
        await engine.compare_and_set(
            [DocumentWrite("k", "b", None, b""), DocumentWrite("k", "c", None, b"")], announce=True
        )
        assert subscription.get_message(timeout=5)["data"] == b"\1k"
        await engine.compare_and_set(
            [DocumentWrite("cd", "d", None, b"")], [insertion(broker)], announce=True
        )
        assert subscription.get_message(timeout=5)["data"] == b"\0q"
        assert subscription.get_message(timeout=5)["data"] == b"\1cd"
        subscription.close()


async def test_without_the_right_to_subscribe_documents_are_polled(server: Server) -> None:
    with client(server.url) as connection:
        connection.execute_command("ACL", "SETUSER", "default", "-subscribe")
    async with Broker(server.url, config=QUIET) as broker, Broker(server.url, config=QUIET) as other:
        with broker._engine.signals.listen([documents_topic("k")]) as event:
            await broker._engine.documents("k")
            event.clear()
            await other._engine.compare_and_set([FIRST], announce=True)
            await with_timeout(event.wait())


async def test_damaged_documents_are_left_out(server: Server, broker: Broker) -> None:
    await broker._engine.compare_and_set([FIRST])
    with client(server.url) as connection:
        damaged = [b"k\0\xff\0" + bytes(8) + b"value", b"k\0short\0time", b"k\0no time"]
        connection.zadd(Keys("dayjob").documents, dict.fromkeys(damaged, 0))
        assert [document.name for document in (await broker._engine.documents("k"))[1]] == [FIRST.name]
        connection.zrem(Keys("dayjob").documents, *damaged)


# Reads of one call.


async def test_reclaiming_skips_any_number_of_other_claims(server: Server, broker: Broker) -> None:
    """There are more claims than one step examines."""
    for worker, jobs in (("alive", 700), ("gone", 600), ("alive", 700), ("", 100)):
        await broker.enqueue_many([NewJob("q") for _ in range(jobs)])
        assert len(await broker.claim("q", limit=jobs, worker=worker or None)) == jobs
    with client(server.url) as connection:
        connection.config_resetstat()
        assert len(await broker._engine.reclaim(["unknown", ""], 10)) == 0
        assert connection.info("commandstats")["cmdstat_zscan"]["calls"] > 5
    assert [len(await broker._engine.reclaim(["gone"], 350)) for _ in range(3)] == [350, 250, 0]
    stats = await broker.stats("q")
    assert (stats.pending, stats.running) == (600, 1500)


async def test_a_damaged_record_does_not_stop_reclaiming(server: Server, broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(4)])
    damaged, _, other, lost = await broker.claim("q", limit=4, worker="gone")
    jobs = Keys("dayjob").jobs
    with client(server.url) as connection:
        record = connection.hget(jobs, other.key)
        connection.hset(jobs, damaged.key, b"\xc1")
        connection.hset(jobs, other.key, b"\x09" + record[1:])
        connection.zrem(Keys("dayjob").leases, lost.key)
        connection.zadd(Keys("dayjob").leases, {lost.key: 0, b"x" * 16: 0})
    assert len(await broker._engine.reclaim(["gone"], 10)) == 3
    await broker.reap()
    assert len(await broker.jobs()) == 4


async def test_the_position_is_counted_without_walking_the_queue(server: Server, broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(2000)])
    last = await broker.enqueue("q")
    with client(server.url) as connection:
        connection.config_resetstat()
        assert await broker._engine.position(id_key(last.id), 10_000) == 2000
        assert await broker._engine.position(id_key(last.id), 100) == 100
        commands = {name for name, _ in connection.info("commandstats").items()}
    assert "cmdstat_zlexcount" in commands
    assert not any("zrange" in name for name in commands)
