"""Changes by one process soon wake the waiters of another, and waiting costs little CPU time."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, BrokerConfig, CancelOutcome, Retention
from dayjob.runtime.clock import SYSTEM
from tests.engines.sqlite.roles import claim_and_ack, idle, run_until_cancelled
from tests.support.bound import BOUND
from tests.support.processes import Spawn, pause

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("duties", [True, False], ids=["duties", "no duties"])
async def test_a_waiting_claim_starts_a_job_of_another_process_within_50_ms(
    url: str, broker: Broker, spawn: Spawn, duties: bool
) -> None:
    child = await spawn(claim_and_ack, url, 20, duties)
    assert await child.receive() == "ready"
    delays = []
    for turn in range(20):
        await pause(0.05 + 0.0013 * turn)
        await broker.enqueue("q")
        enqueued = SYSTEM.elapsed()
        delays.append(await child.receive() - enqueued)
    assert sorted(delays)[5] < 0.05, sorted(delays)  # Other processes may delay some.
    assert await child.wait() == 0


async def test_an_idle_waiting_claim_uses_less_than_a_hundredth_of_a_core(url: str, spawn: Spawn) -> None:
    """The best second counts, since other processes only add to it. Each second has all frequent duties."""
    child = await spawn(idle, url, 4)
    shares: list[float] = await child.receive()
    assert min(shares) < 0.01, shares
    assert await child.wait() == 0


@pytest.mark.parametrize("duties", [True, False], ids=["duties", "no duties"])
async def test_a_cancel_fires_the_token_of_a_claim_in_another_process_within_a_second(
    url: str, broker: Broker, spawn: Spawn, duties: bool
) -> None:
    enqueued = await broker.enqueue("q")
    child = await spawn(run_until_cancelled, url, duties)
    assert await child.receive() == enqueued.id
    begun = SYSTEM.elapsed()
    assert await broker.cancel(enqueued.id) is CancelOutcome.REQUESTED
    assert await child.receive() - begun < 1
    assert await child.wait() == 0
    assert (await broker.stats("q")).running == 0


async def test_a_cancel_fires_no_other_token(url: str, broker: Broker, spawn: Spawn) -> None:
    ids = [(await broker.enqueue("q")).id for _ in range(2)]
    first = await spawn(run_until_cancelled, url, True)
    assert await first.receive() == ids[0]
    second = await spawn(run_until_cancelled, url, True)
    assert await second.receive() == ids[1]
    await broker.cancel(ids[1])
    await second.receive()
    assert await second.wait() == 0
    still = await broker.get(ids[0])
    assert still is not None
    assert still.state == "running"
    await broker.cancel(ids[0])
    await first.receive()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
async def test_waiters_see_a_job_end_in_another_process(url: str, spawn: Spawn, kept: bool) -> None:
    retention = Retention(done=60) if kept else Retention()
    async with (
        Broker(url, config=BrokerConfig(duties=False, retention=retention)) as broker,
        Broker(url, config=BrokerConfig(duties=False)) as other,
    ):
        enqueued = await broker.enqueue("q")
        waiting = [asyncio.create_task(each.wait(enqueued.id, BOUND)) for each in (broker, broker, other)]
        await pause(0.1)
        assert not any(waiter.done() for waiter in waiting)
        child = await spawn(claim_and_ack, url, 1, False)
        assert await child.receive() == "ready"
        acked: float = await child.receive()
        answers = await asyncio.gather(*waiting)
        assert SYSTEM.elapsed() - acked < BOUND / 2
        assert {answer.status for answer in answers} == {"completed"}
