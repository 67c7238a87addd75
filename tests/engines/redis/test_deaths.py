"""The latest failures: how much one look reads, and what damaged records leave behind."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, NewJob, Retention, Settlement
from dayjob.engines.redis.keys import Keys
from dayjob.engines.redis.link import Command, Link
from dayjob.model.job import id_key
from tests.support.servers.redis import Server, client
from tests.support.servers.redis_audit import DAMAGED

KEYS = Keys("dayjob")


async def died(broker: Broker, queue: str, number: int) -> list[str]:
    """Ids of new dead jobs, the latest failure first; those of one call died at the same time."""
    await broker.enqueue_many([NewJob(queue) for _ in range(number)])
    jobs = await broker.claim(queue, limit=number)
    await broker.settle_many([Settlement.dead_letter(job, "no good") for job in jobs])
    return sorted((job.id for job in jobs), reverse=True)


async def latest(broker: Broker, queue: str | None = None, **options: Any) -> list[str]:
    return [job.id for job in await broker.latest_dead(queue, **options)]


@pytest.mark.parametrize("queue", [None, "few", "many"])
async def test_a_look_reads_as_many_records_as_it_shows(
    broker: Broker, queue: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await died(broker, "few", 20)
    await died(broker, "many", 3000)
    asked: list[Command] = []
    ask = Link.ask

    async def counted(link: Link, *commands: Command, **options: Any) -> list[Any]:
        asked.extend(commands)
        return await ask(link, *commands, **options)

    monkeypatch.setattr(Link, "ask", counted)
    first = await broker.latest_dead(queue, limit=7)
    second = await broker.latest_dead(queue, before=first[-1], limit=7)
    assert len({job.id for job in first + second}) == 14
    assert [command[0] for command in asked] == ["ZREVRANGEBYLEX", "HMGET"] * 2
    assert [command[-1] for command in asked[::2]] == [7, 7]
    assert [len(command) - 2 for command in asked[1::2]] == [7, 7]


async def test_names_that_begin_alike_are_kept_apart(broker: Broker) -> None:
    made = {queue: await died(broker, queue, 2) for queue in ("q", "q\1", "\1", "qq", "q\uffff")}
    for queue, ids in made.items():
        assert await latest(broker, queue) == ids
    assert await latest(broker, "") == []
    assert sorted(await latest(broker)) == sorted(id for ids in made.values() for id in ids)


async def test_more_than_a_page_comes_in_order(broker: Broker) -> None:
    older, newer = await died(broker, "q", 1500), await died(broker, "r", 1500)
    assert await latest(broker, limit=2500) == [*newer, *older][:2500]


@pytest.mark.parametrize("queue", [None, "q"])
async def test_what_a_damaged_record_leaves_is_passed_over_and_removed(
    server: Server, broker: Broker, queue: str | None
) -> None:
    """Its head is made anew, and so is the time of its failure: it counts as the latest."""
    ids = await died(broker, "q", 5)
    with client(server.url) as connection:
        for id in ids[1:3]:
            DAMAGED.add(id_key(id))
            connection.hset(KEYS.jobs, id_key(id), b"garbage")
        assert await latest(broker, queue, limit=5) == [ids[0], ids[3], ids[4]]
        assert await latest(broker, queue, limit=4) == [ids[1], ids[2], ids[0], ids[3]]
        await latest(broker, "q" if queue is None else None)
        assert connection.zcard(KEYS.deaths) == 10
        await broker.purge_dead()
        assert not connection.exists(KEYS.deaths)


async def test_an_entry_of_a_job_that_is_dead_again_stays(server: Server, broker: Broker) -> None:
    """Somebody's look found it amiss, and meanwhile it is not."""
    await died(broker, "q", 1)
    link = broker._engine._link  # type: ignore[attr-defined]
    with client(server.url) as connection:
        entries = connection.zrange(KEYS.deaths, 0, -1)
        gone = [b"q\0" + bytes(24), bytes(25)]
        connection.zadd(KEYS.deaths, dict.fromkeys(gone, 0))
        await link.tend("forget_deaths", 4, *entries, *gone)
        assert connection.zrange(KEYS.deaths, 0, -1) == entries


async def test_a_full_server_takes_failures(server: Server, broker: Broker) -> None:
    await broker.enqueue("q")
    (job,) = await broker.claim("q")
    with client(server.url) as connection:
        connection.config_set("maxmemory", 1)
        await broker.dead_letter(job, "no good")
        assert await latest(broker) == [job.id]
        connection.config_set("maxmemory", 0)


async def test_jobs_that_die_unkept_are_not_among_the_latest(server: Server) -> None:
    config = BrokerConfig(duties=False, retention=Retention(dead=0))
    async with Broker(server.url, config=config) as broker:
        await died(broker, "q", 3)
        assert await latest(broker) == []
