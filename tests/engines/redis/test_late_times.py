"""Times after the year 2255 are no exact scores of a sorted set, but exact in the record of the job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dayjob import Broker, BrokerConfig, JobState, Retention
from dayjob.testing import ManualClock
from tests.support.arrange import claim_one, record, state
from tests.support.servers.redis import Server

CLOSE = timedelta(microseconds=50)
MINUTE = timedelta(minutes=1)

KEEPING = BrokerConfig(duties=False, retention=Retention(done=MINUTE))


@pytest.mark.parametrize("year", [2256, 2500, 9998])
async def test_times_after_2255_are_stored_exactly_and_compared_to_within_microseconds(
    server: Server, year: int
) -> None:
    clock = ManualClock()
    due = datetime(year, 7, 1, 12, 0, 0, 123_457, UTC)
    async with Broker(server.url, config=KEEPING, clock=clock) as broker:
        id = (await broker.enqueue("q", run_at=due)).id
        sooner = (await broker.enqueue("q", run_at=due - 3 * CLOSE)).id
        expiring = (await broker.enqueue("expiring", expires=due)).id
        assert (await record(broker, id)).run_at == due
        assert (await record(broker, expiring)).expires_at == due
        clock.set(due - CLOSE)
        assert await broker.promote() == 1
        assert (await state(broker, sooner), await state(broker, id)) == (
            JobState.PENDING,
            JobState.SCHEDULED,
        )
        assert await state(broker, expiring) is JobState.PENDING
        await broker.ack(await claim_one(broker))

        clock.set(due + CLOSE)
        assert await broker.claim("expiring") == []
        assert await broker.promote() == 1
        claim = await claim_one(broker, lease=MINUTE)
        assert (claim.id, claim.run_at) == (id, due)
        assert claim.lease_expires_at is not None
        assert abs(claim.lease_expires_at - (due + CLOSE + MINUTE)) < CLOSE
        clock.set(claim.lease_expires_at - CLOSE)
        assert await broker.reap() == 0
        clock.set(claim.lease_expires_at + CLOSE)
        assert await broker.reap() == 1

        await broker.ack(await claim_one(broker))
        finished = clock.time
        clock.set(finished + MINUTE - 2 * CLOSE)
        await broker.sweep()
        assert await state(broker, id) is JobState.DONE
        clock.set(finished + MINUTE + 2 * CLOSE)
        await broker.sweep()
        assert await state(broker, id) is None


async def test_a_due_time_after_2255_that_replaces_another_is_stored_exactly(server: Server) -> None:
    due = datetime(9998, 7, 1, 12, 0, 0, 123_457, UTC)
    async with Broker(server.url, config=KEEPING) as broker:
        id = (await broker.enqueue("q", run_at=due - MINUTE, dedup_key="k", dedup="latest")).id
        again = await broker.enqueue("q", run_at=due, dedup_key="k", dedup="latest")
        assert (again.id, again.created) == (id, False)
        assert (await record(broker, id)).run_at == due
        assert await broker.reschedule(id, run_at=due - MINUTE)
        assert (await record(broker, id)).run_at == due - MINUTE
