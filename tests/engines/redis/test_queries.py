"""All ways to list jobs have the same result; and the reads of one query."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import Broker, Job, JobState, NewJob
from dayjob.engines.redis import queries, record
from dayjob.engines.redis.client import Client, Command
from dayjob.engines.redis.keys import Keys
from dayjob.model.job import id_key, id_text
from dayjob.runtime.ids import new_key
from tests.support.servers.redis import Server, client

WAYS = {"runs": {}, "a sorted set": {"RUNS": 2}, "all ids": {"RUNS": 2, "SPARSE": 0}}
QUEUES = ("q", "q\1", "r", "s")
PRIORITIES = (0, 7, 2**32 - 1)


def jobs_of_all_kinds() -> list[NewJob]:
    """Return 60 pending jobs and 60 scheduled ones, in turns."""
    return [
        NewJob(QUEUES[number % 4], priority=PRIORITIES[number % 3], delay=(number % 2) * 60)
        for number in range(120)
    ]


async def pages(broker: Broker, size: int, **options: Any) -> list[str]:
    found: list[Job] = []
    while page := await broker.jobs(limit=size, after=found[-1].id if found else None, **options):
        assert len(page) <= size
        found += page
    return [job.id for job in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", [JobState.PENDING, JobState.SCHEDULED])
async def test_each_way_lists_waiting_jobs_in_id_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, way: str, state: JobState
) -> None:
    for name, value in WAYS[way].items():
        monkeypatch.setattr(queries, name, value)
    await broker.enqueue_many(jobs_of_all_kinds())
    everything = await broker.jobs(limit=1000)
    for queue in (None, *QUEUES, "unknown"):
        expected = [job.id for job in everything if job.state is state and queue in (None, job.queue)]
        for size in (1, 7, 1000):
            assert await pages(broker, size, queue=queue, state=state) == expected
            found = await pages(broker, size, queue=queue, state=state, newest_first=True)
            assert found == expected[::-1]


@pytest.mark.parametrize("queue", [None, "r"])
async def test_a_listing_of_pending_jobs_does_not_read_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, queue: str | None
) -> None:
    await broker.enqueue_many([NewJob(name, priority=9) for name in ("q", "r") for _ in range(20)])
    await broker.enqueue_many([NewJob("r", delay=60) for _ in range(3000)])
    sent: list[Command] = []
    execute = Client.execute

    async def counted(client: Client, *commands: Command) -> list[Any]:
        sent.extend(commands)
        return await execute(client, *commands)

    monkeypatch.setattr(Client, "execute", counted)
    assert len(await broker.jobs(queue, JobState.PENDING, limit=10, newest_first=True)) == 10
    assert [len(command) - 2 for command in sent if command[0] == "HMGET"] == [10, 10, 10]
    assert all(command[-1] in (1, 10) for command in sent if "RANGEBYLEX" in str(command[0]))
    assert len(sent) <= 14


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
async def test_queues_with_pending_jobs_are_read_in_pages(
    server: Server, broker: Broker, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(queries, "PAGE", size)
    assert await broker._engine.pending_queues() == []
    names = ["a", "a\1", "ab", "b", "é"]
    await broker.enqueue_many([NewJob(name, priority=number) for name in names for number in range(3)])
    await broker.enqueue_many([NewJob(f"idle {number}", delay=60) for number in range(100)])
    with client(server.url) as connection:
        connection.config_resetstat()
        assert await broker._engine.pending_queues() == names
        assert connection.info("commandstats")["cmdstat_zrangebylex"]["calls"] <= 7


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_damaged_job_is_listed_once(server: Server, broker: Broker, newest_first: bool) -> None:
    """Its new head has another priority, and its old entry stays until a claim."""
    made = [(await broker.enqueue("q", priority=5)).id for _ in range(3)]
    with client(server.url) as connection:
        connection.hset(Keys("dayjob").jobs, id_key(made[1]), b"garbage")
    expected = made[::-1] if newest_first else made
    for size in (2, 3):
        assert await pages(broker, size, state=JobState.PENDING, newest_first=newest_first) == expected
    await broker.claim("q", limit=3)


async def test_a_job_that_is_written_between_the_reads_is_read_again(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its payload is read before it exists, and its record after that."""
    execute = Client.execute
    keys = [new_key(), new_key()]
    payload = bytes(record.SMALL + 1)
    writes = [other.enqueue("q", payload, id=id_text(key)) for key in keys]

    async def interrupted(client: Client, *commands: Command) -> list[Any]:
        if [command[0] for command in commands] != ["HMGET"] * 3 or not writes:
            return await execute(client, *commands)
        before = await execute(client, *commands[:2])
        await writes.pop(0)
        return before + await execute(client, *commands[2:])

    monkeypatch.setattr(Client, "execute", interrupted)
    found = await broker._engine.get(keys)
    assert [job and (job.payload, job.last_error) for job in found] == [(payload, None)] * 2
