"""The key-value space: separate from internal keys, and atomic with enqueue and ack."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, KvValueTooLarge, LeaseLost, NewJob
from tests.support.arrange import OpenBroker, running
from tests.support.observe import everything

MOST = 256 * 1024


async def test_a_value_is_put_replaced_and_deleted(broker: Broker) -> None:
    assert await broker.kv_get(b"k") is None
    await broker.kv_put(b"k", b"one")
    assert await broker.kv_get(b"k") == b"one"
    await broker.kv_put(b"k", b"two")
    assert await broker.kv_get(b"k") == b"two"
    await broker.kv_delete(b"k")
    assert await broker.kv_get(b"k") is None
    await broker.kv_delete(b"k")


async def test_an_empty_value_is_stored(broker: Broker) -> None:
    await broker.kv_put(b"k", b"")
    assert await broker.kv_get(b"k") == b""


async def test_a_key_may_be_any_bytes(broker: Broker) -> None:
    keys = [bytes([byte]) for byte in range(256)]
    keys += [b"a", b"A", b"a ", b" a", b"a\0", b"\0a", b"a\0b", b"a:b", b"%", b"_", b"'", b'"', b"\xff\xfe"]
    keys += [b"k" * 1024, b"k" * 1023, "é".encode(), "e\u0301".encode()]
    keys = sorted(set(keys))
    for number, key in enumerate(keys):
        await broker.kv_put(key, str(number).encode())
    assert [await broker.kv_get(key) for key in keys] == [str(n).encode() for n in range(len(keys))]
    await broker.kv_delete(b"a")
    assert await broker.kv_get(b"a ") is not None
    assert await broker.kv_get(b"A") is not None


@pytest.mark.parametrize("size", [MOST - 1, MOST])
async def test_a_value_up_to_the_limit_is_stored(broker: Broker, size: int) -> None:
    value = (bytes(range(256)) * (size // 256 + 1))[:size]
    await broker.kv_put(b"k", value)
    assert await broker.kv_get(b"k") == value
    await broker.enqueue("q", kv={b"by enqueue": value})
    assert await broker.kv_get(b"by enqueue") == value


async def test_a_value_over_the_limit_is_refused_before_anything_is_written(broker: Broker) -> None:
    claim = await running(broker)
    await broker.kv_put(b"k", b"old")
    before = await everything(broker)
    large = b"x" * (MOST + 1)
    for attempt in (
        lambda: broker.kv_put(b"k", large),
        lambda: broker.enqueue("q", kv={b"k": large}),
        lambda: broker.enqueue("q", kv={b"new": b"v", b"k": large}),
        lambda: broker.enqueue_many([NewJob("q", kv={b"new": b"v"}), NewJob("q", kv={b"k": large})]),
        lambda: broker.ack(claim, kv={b"new": b"v", b"k": large}),
        lambda: broker.ack(claim, enqueue=[NewJob("q", kv={b"new": b"v", b"k": large})]),
    ):
        with pytest.raises(KvValueTooLarge) as caught:
            await attempt()
        assert (caught.value.size, caught.value.max) == (MOST + 1, MOST)
        assert isinstance(caught.value, ValueError)
    assert await broker.kv_get(b"k") == b"old"
    assert await broker.kv_get(b"new") is None
    assert await everything(broker) == before


async def test_kv_is_written_with_its_job(broker: Broker) -> None:
    await broker.kv_put(b"a", b"old")
    enqueued = await broker.enqueue("q", kv={b"a": b"1", b"b": b"2"})
    assert enqueued.created
    assert (await broker.kv_get(b"a"), await broker.kv_get(b"b")) == (b"1", b"2")


async def test_the_last_write_of_a_key_in_a_batch_wins(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q", kv={b"k": str(n).encode(), b"%d" % n: b""}) for n in range(5)])
    assert await broker.kv_get(b"k") == b"4"
    assert [await broker.kv_get(b"%d" % n) for n in range(5)] == [b""] * 5


async def test_kv_is_written_with_the_ack_or_not_at_all(broker: Broker) -> None:
    claim = await running(broker)
    await broker.ack(claim, kv={b"k": b"first"}, enqueue=[NewJob("next", kv={b"j": b"job"})])
    assert (await broker.kv_get(b"k"), await broker.kv_get(b"j")) == (b"first", b"job")
    with pytest.raises(LeaseLost):
        await broker.ack(claim, kv={b"k": b"second"})
    assert await broker.kv_get(b"k") == b"first"


async def test_a_value_is_seen_by_every_broker(broker: Broker, open_broker: OpenBroker) -> None:
    other = await open_broker()
    await broker.kv_put(b"k", b"v")
    assert await other.kv_get(b"k") == b"v"
    await other.kv_delete(b"k")
    assert await broker.kv_get(b"k") is None


async def test_user_keys_never_collide_with_internal_ones(broker: Broker) -> None:
    """Writes and deletes under likely internal names change no job."""
    await broker.enqueue("q", dedup_key="d")
    await broker.enqueue("q", delay=9)
    await running(broker, "r")
    await broker.pause("p")
    before = await everything(broker)
    likely = [
        b"q", b"r", b"p", b"d", b"job", b"jobs", b"job:", b"queue", b"queues", b"queue:q", b"stats",
        b"stats:q", b"paused", b"pending", b"running", b"meta", b"schema", b"schema_version", b"version",
        b"layout", b"dayjob", b"dayjob:", b"dayjob:version", b"kv", b"kv:", b"kv:k", b"user_version",
        b"lease", b"dedup",
        b"sqlite_master", b"\x00", b"\x01", b"\xff", *[job["id"].encode() for job in before["jobs"]],
        *[bytes.fromhex(job["id"].replace("-", "")) for job in before["jobs"]],
    ]  # fmt: skip
    assert [await broker.kv_get(key) for key in likely] == [None] * len(likely)
    for key in likely:
        await broker.kv_put(key, b"garbage")
    assert await everything(broker) == before
    for key in likely:
        await broker.kv_delete(key)
    assert await everything(broker) == before
    assert not (await broker.enqueue("q", dedup_key="d")).created


async def test_concurrent_writes_are_all_stored(broker: Broker) -> None:
    await asyncio.gather(*(broker.kv_put(b"%d" % n, b"v%d" % n) for n in range(100)))
    values = await asyncio.gather(*(broker.kv_get(b"%d" % n) for n in range(100)))
    assert values == [b"v%d" % n for n in range(100)]
