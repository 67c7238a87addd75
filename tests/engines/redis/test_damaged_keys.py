"""Keys that another client of the server has damaged stop no claim, no insert and no page."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dayjob import Broker
from tests.dashboard.browsing import browse
from tests.support.servers.redis import Server, client

DAMAGE: dict[str, Callable[..., object]] = {
    "a queue that is not UTF-8": lambda redis: redis.sadd(b"{dayjob}:queues", b"\xff\xfe"),
    "a paused queue that is not UTF-8": lambda redis: redis.sadd(b"{dayjob}:paused", b"\xff\xfe"),
    "a pending counter that is no number": lambda redis: redis.hset(b"{dayjob}:counts", b"2q", b"many"),
    "a running counter that is no number": lambda redis: redis.hset(b"{dayjob}:counts", b"3q", b"many"),
    "a document that is not one": lambda redis: redis.zadd(
        b"{dayjob}:documents", {b"\xff": 0, b"schedule\0s\0": 0, b"worker\0\xff\0" + b"\0" * 20: 0}
    ),
    "a pending member of no job": lambda redis: redis.zadd(
        b"{dayjob}:pending", {b"q\0" + b"\0\0\0\1" + b"\7" * 16: 0}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
async def test_a_damaged_key_stops_no_page_no_insert_and_no_claim(
    broker: Broker, server: Server, damage: Callable[..., object]
) -> None:
    first = await broker.enqueue("q", b"{}", task="t")
    with client(server.url) as redis:
        try:
            damage(redis)
            second = await broker.enqueue("q", b"{}", task="t")
            third = await broker.enqueue("q", b"{}", task="t", dedup_key="k")
            browser = browse(broker)
            for page in ("/", "/jobs", f"/jobs/{first.id}", "/dead", "/workers", "/schedules", "/metrics"):
                assert (await browser.get(page)).status_code == 200, page
            jobs = await broker.claim("q", limit=9)
            assert [job.id for job in jobs] == [first.id, second.id, third.id]
            for job in jobs:
                await broker.ack(job)
            assert await broker.claim_any() == []
        finally:
            redis.flushdb()  # The audit of the keys would find the damage.
