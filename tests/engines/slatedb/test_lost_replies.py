"""Writes that were applied but not durable in time: a repeated token gets the stored reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest
from msgspec.structs import replace

from dayjob import Broker, JobState, NewJob, QueueStats
from dayjob.engines.base import (
    ClaimRequest,
    DocumentWrite,
    Engine,
    Insertion,
    RetentionTimes,
    SettleOp,
    Token,
    Transient,
)
from dayjob.engines.slatedb import store_thread
from dayjob.model.lifecycle import Transition
from dayjob.runtime.signals import documents_topic, queue_topic
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.damage import open_thread
from tests.support.bound import BOUND

WRITE = DocumentWrite("k", "a", None, b"1")
REQUEST = ClaimRequest((("q", 60_000_000),), 1, None)


def token(slot: int = 0, number: int = 1) -> Token:
    return Token(b"%d %d" % (slot, number), b"client", slot, number)


def again(first: Token) -> Token:
    return replace(first, repeated=True)


def insertion(broker: Broker) -> Insertion:
    return broker._validator.insertion(NewJob("q"))


async def values_of(engine: Engine) -> dict[str, bytes]:
    return {one.name: one.value for one in (await engine.documents("k"))[1]}


@pytest.fixture
def slow_url(url: str) -> str:
    return f"{url}?flush_ms=300"


@pytest.fixture
async def slow(slow_url: str) -> AsyncIterator[Broker]:
    """A broker whose last flush was just now, so that the next write waits for the flush interval."""
    async with Broker(slow_url, config=QUIET) as broker:
        await broker.kv_put(b"k", b"v")
        yield broker


async def lose(url: str, call: Awaitable[object]) -> None:
    """Make a call that is applied, but times out before it is durable."""
    thread = open_thread(url)
    settings = thread.settings
    thread.settings = replace(settings, timeout=0)
    with pytest.raises(Transient, match="may be repeated") as caught:
        await call
    assert caught.value.commit_unknown
    thread.settings = settings


async def test_a_repeated_write_gets_the_stored_reply_and_changes_nothing(
    slow: Broker, slow_url: str
) -> None:
    engine, job = slow._engine, insertion(slow)
    with engine.signals.listen([documents_topic("k")]) as listener:
        await lose(slow_url, engine.compare_and_set([WRITE], [job], announce=True, token=token()))
        assert not await engine.compare_and_set([WRITE], [job], token=token(slot=1)), "another token"
        for _ in range(2):
            assert await engine.compare_and_set([WRITE], [job], announce=True, token=again(token()))
        async with asyncio.timeout(BOUND):
            await listener.wait()
    assert await values_of(engine) == {"a": b"1"}
    assert (await slow.stats("q")).pending == 1


async def test_the_stored_reply_stays_after_other_writes(slow: Broker, slow_url: str) -> None:
    engine = slow._engine
    await lose(slow_url, engine.compare_and_set([WRITE], token=token()))
    assert await engine.compare_and_set([DocumentWrite("k", "a", b"1", b"2")], token=token(slot=1))
    assert await engine.compare_and_set([WRITE], token=again(token()))
    assert await values_of(engine) == {"a": b"2"}


async def test_the_next_write_of_the_slot_drops_the_stored_reply(slow: Broker, slow_url: str) -> None:
    engine = slow._engine
    await lose(slow_url, engine.compare_and_set([WRITE], token=token()))
    assert await engine.compare_and_set([DocumentWrite("k", "a", b"1", None)], token=token(number=2))
    assert open_thread(slow_url)._unconfirmed == {}
    assert await engine.compare_and_set([WRITE], token=token(number=3)), "it is as expected"
    assert not await engine.compare_and_set([WRITE], token=token(number=4))


async def test_the_oldest_stored_replies_are_dropped(
    slow: Broker, slow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_thread, "_MAX_UNCONFIRMED", 2)
    engine = slow._engine
    for slot in range(3):
        await engine.kv_write([(b"a", b"b")])
        await lose(slow_url, engine.kv_write([(b"k", b"%d" % slot)], token=token(slot)))
    assert [slot for _, slot in open_thread(slow_url)._unconfirmed] == [1, 2]


async def test_a_lost_insert_is_reported_as_created(slow: Broker, slow_url: str) -> None:
    engine, job = slow._engine, insertion(slow)
    await lose(slow_url, engine.insert([job], token=token()))
    assert [reply.created for reply in await engine.insert([job], token=again(token()))] == [True]
    assert [reply.created for reply in await engine.insert([job], token=token(number=2))] == [False]


async def test_a_lost_settlement_is_reported_as_applied(slow: Broker, slow_url: str) -> None:
    engine = slow._engine
    await slow.enqueue("q")
    (job,) = await slow.claim("q")
    op = SettleOp(job.key, job.claim, Transition.ACK, RetentionTimes())
    await lose(slow_url, engine.settle([op], token=token()))
    assert await engine.settle([op], token=again(token())) == [JobState.DONE]
    assert await engine.settle([op], token=token(number=2)) == [None]


@pytest.mark.parametrize("first", [token(), None])
async def test_an_unconfirmed_claim_is_released(slow: Broker, slow_url: str, first: Token | None) -> None:
    engine = slow._engine
    await slow.enqueue("q")
    await lose(slow_url, engine.claim([REQUEST], token=first))
    [(job,)] = await engine.claim([REQUEST], token=first and again(first))
    assert job.attempts == 1, "the first claim does not count"
    assert await slow.stats("q") == QueueStats(running=1)


async def test_a_lost_insert_and_claim_keeps_the_jobs_and_releases_the_claims(
    slow: Broker, slow_url: str
) -> None:
    engine, job = slow._engine, insertion(slow)
    with engine.signals.listen([queue_topic("q")]) as listener:
        await lose(slow_url, engine.insert_and_claim([job], [REQUEST], token=token()))
        enqueued, claimed = await engine.insert_and_claim([job], [REQUEST], token=again(token()))
        assert ([reply.created for reply in enqueued], claimed) == ([True], [[]])
        assert await slow.stats("q") == QueueStats(pending=1)
        async with asyncio.timeout(BOUND):
            await listener.wait()
    [(found,)] = await engine.claim([REQUEST])
    assert (found.key, found.attempts) == (job.key, 1)


async def test_the_broker_repeats_lost_writes_until_they_are_durable(slow: Broker, slow_url: str) -> None:
    await slow.enqueue("q")
    (job,) = await slow.claim("q")
    thread = open_thread(slow_url)
    settings = thread.settings
    thread.settings = replace(settings, timeout=0)
    assert (await slow.enqueue("q")).created
    await slow.ack(job)
    thread.settings = settings
    assert await slow.stats("q") == QueueStats(pending=1, done=1)
