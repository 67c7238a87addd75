"""Dead jobs by time: the reads of one query, and entries left by damaged records."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, NewJob, Retention, Settlement
from dayjob.engines.redis.client import Client, Command
from dayjob.engines.redis.keys import Keys
from dayjob.model.job import id_key
from tests.support.servers.redis import Server, client
from tests.support.servers.redis_audit import DAMAGED

KEYS = Keys("dayjob")


async def make_dead(broker: Broker, queue: str, number: int) -> list[str]:
    """Return the ids of new dead jobs, the latest failure first. Jobs of one call died at the same time."""
    await broker.enqueue_many([NewJob(queue) for _ in range(number)])
    jobs = await broker.claim(queue, limit=number)
    await broker.settle_many([Settlement.dead_letter(job, "no good") for job in jobs])
    return sorted((job.id for job in jobs), reverse=True)


async def latest(broker: Broker, queue: str | None = None, **options: Any) -> list[str]:
    return [job.id for job in await broker.latest_dead(queue, **options)]


@pytest.mark.parametrize("queue", [None, "few", "many"])
async def test_a_query_reads_only_the_records_that_it_returns(
    broker: Broker, queue: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_dead(broker, "few", 20)
    await make_dead(broker, "many", 3000)
    sent: list[Command] = []
    execute = Client.execute

    async def counted(client: Client, *commands: Command) -> list[Any]:
        sent.extend(commands)
        return await execute(client, *commands)

    monkeypatch.setattr(Client, "execute", counted)
    first = await broker.latest_dead(queue, limit=7)
    second = await broker.latest_dead(queue, before=first[-1], limit=7)
    assert len({job.id for job in first + second}) == 14
    assert [command[0] for command in sent] == ["ZREVRANGEBYLEX", "HMGET", "HMGET", "HMGET"] * 2
    assert [command[-1] for command in sent[::4]] == [7, 7]
    assert [len(command) - 2 for command in sent if command[0] == "HMGET"] == [7] * 6


async def test_queues_with_a_common_prefix_are_kept_apart(broker: Broker) -> None:
    made = {queue: await make_dead(broker, queue, 2) for queue in ("q", "q\1", "\1", "qq", "q\uffff")}
    for queue, ids in made.items():
        assert await latest(broker, queue) == ids
    assert await latest(broker, "") == []
    assert sorted(await latest(broker)) == sorted(id for ids in made.values() for id in ids)


async def test_more_than_one_page_is_in_order(broker: Broker) -> None:
    older, newer = await make_dead(broker, "q", 1500), await make_dead(broker, "r", 1500)
    assert await latest(broker, limit=2500) == [*newer, *older][:2500]


@pytest.mark.parametrize("queue", [None, "q"])
async def test_entries_of_a_damaged_record_are_skipped_and_removed(
    server: Server, broker: Broker, queue: str | None
) -> None:
    """Its new head has a new time of failure, so it is the latest."""
    ids = await make_dead(broker, "q", 5)
    with client(server.url) as connection:
        for id in ids[1:3]:
            DAMAGED.add(id_key(id))
            connection.hset(KEYS.jobs, id_key(id), b"garbage")
        assert await latest(broker, queue, limit=5) == [ids[0], ids[3], ids[4]]
        assert await latest(broker, queue, limit=4) == [ids[1], ids[2], ids[0], ids[3]]
        await latest(broker, "q" if queue is None else None)
        assert connection.zcard(KEYS.dead_index) == 10
        await broker.purge_dead()
        assert not connection.exists(KEYS.dead_index)


async def test_pruning_keeps_the_entries_of_dead_jobs(server: Server, broker: Broker) -> None:
    """A query found an entry stale, and the job is dead again by the time of the pruning."""
    await make_dead(broker, "q", 1)
    redis = broker._engine._client  # type: ignore[attr-defined]
    with client(server.url) as connection:
        entries = connection.zrange(KEYS.dead_index, 0, -1)
        stale = [b"q\0" + bytes(24), bytes(25)]
        connection.zadd(KEYS.dead_index, dict.fromkeys(stale, 0))
        await redis.run_idempotent("prune_dead_index", 4, *entries, *stale)
        assert connection.zrange(KEYS.dead_index, 0, -1) == entries


async def test_a_full_server_accepts_dead_letters(server: Server, broker: Broker) -> None:
    await broker.enqueue("q")
    (job,) = await broker.claim("q")
    with client(server.url) as connection:
        connection.config_set("maxmemory", 1)
        await broker.dead_letter(job, "no good")
        assert await latest(broker) == [job.id]
        connection.config_set("maxmemory", 0)


async def test_dead_jobs_that_are_not_kept_are_not_indexed(server: Server) -> None:
    config = BrokerConfig(duties=False, retention=Retention(dead=0))
    async with Broker(server.url, config=config) as broker:
        await make_dead(broker, "q", 3)
        assert await latest(broker) == []
