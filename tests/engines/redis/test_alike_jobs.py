"""Scripts handle thousands of alike jobs as fast as other jobs: their strings differ in Lua's hash.

Lua 5.1 keeps each string once. It compares a new string with all strings of the same hash, and its hash of a
long string covers few of the bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import pytest

from dayjob import Broker, BrokerConfig, NewJob
from dayjob.engines.base import Insertion, RetentionTimes, SettleOp
from dayjob.engines.redis import record
from dayjob.model.job import NO_CLAIM
from dayjob.model.lifecycle import Transition
from dayjob.runtime.ids import new_keys
from tests.support.arrange import KEEP_ALL, running
from tests.support.servers.redis import Server, client
from tests.support.servers.redis_audit import DAMAGED

JOBS = 4000
MOST = 200
"""The most strings that may have one hash; without salts all have. Seen: 35."""

SIZES = [100, 400, 900, 1024, 1025, 2000, 20_000]


def lua_hash(text: bytes) -> int:
    """Return the hash of Lua 5.1 (``luaS_newlstr``)."""
    value, step = len(text), (len(text) >> 5) + 1
    for end in range(len(text), step - 1, -step):
        value ^= (value << 5) + (value >> 2) + text[end - 1]
        value &= 0xFFFFFFFF
    return value


def largest_class(texts: Iterable[bytes]) -> int:
    """Return the number of different strings that have the commonest hash."""
    return max(Counter(map(lua_hash, set(texts))).values(), default=0)


def alike(size: int, place: str) -> list[bytes]:
    """Return payloads that differ in two bytes."""
    at = size - 3 if place == "end" else size // 2
    return [b"x" * at + number.to_bytes(2) + b"x" * (size - at - 2) for number in range(JOBS)]


def insertion(key: bytes, payload: bytes) -> Insertion:
    return Insertion(key, "q", "tasks.noop", payload, 1000, 1, {})


def test_the_hash_is_that_of_lua() -> None:
    """Each second byte of 32, so that a change of another one has no effect."""
    assert lua_hash(b"") == 0
    assert lua_hash(b"a") == 1 ^ ((1 << 5) + 97)
    assert lua_hash(b"ab" * 16) == lua_hash(b"xb" * 16) != lua_hash(b"ax" * 16)


@pytest.mark.parametrize("place", ["end", "middle"])
@pytest.mark.parametrize("size", SIZES)
def test_the_arguments_of_alike_jobs_have_different_hashes(size: int, place: str) -> None:
    jobs = zip(new_keys(JOBS), alike(size, place), strict=True)
    facts, payloads = zip(*[record.facts(insertion(*job)) for job in jobs], strict=True)
    assert largest_class(facts) <= MOST
    assert largest_class(payloads) <= MOST


@pytest.mark.parametrize("size", SIZES)
async def test_stored_records_and_payloads_of_alike_jobs_have_different_hashes(
    server: Server, size: int
) -> None:
    number = JOBS if size < 20_000 else 400
    payloads = alike(size, "end")[:number]
    async with Broker(server.url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        await broker.enqueue_many([NewJob("q", payload, task="tasks.noop") for payload in payloads])
        with client(server.url) as connection:
            assert largest_class(connection.hvals("{dayjob}:jobs")) <= MOST
            assert largest_class(connection.hvals("{dayjob}:payloads")) <= MOST
            claims = await broker.claim("q", limit=number)
            assert largest_class(connection.hvals("{dayjob}:jobs")) <= MOST
        found = [job.payload for job in claims]
        while len(found) < number:
            found += [job.payload for job in await broker.claim("q", limit=number)]
        assert found == payloads
        listed = await broker._engine.get([job.key for job in claims])
        assert [job and job.payload for job in listed] == payloads[: len(claims)]


@pytest.mark.parametrize("size", SIZES)
def test_alike_results_and_errors_have_different_hashes(size: int) -> None:
    ops = [
        SettleOp(
            key, NO_CLAIM, Transition.ACK, RetentionTimes(), "x" * (size - 5) + f"{number:04}x", 0, result
        )
        for key, (number, result) in zip(new_keys(JOBS), enumerate(alike(size, "end")), strict=True)
    ]
    assert largest_class(map(record.result, ops)) <= MOST
    assert largest_class(map(record.error, ops)) <= MOST


async def test_results_and_errors_are_returned_without_salts(server: Server) -> None:
    """Each salt has one of eight sizes."""
    sizes = [0, 1, 15, 16, 31, 32, 33, 400, 900] * 20
    async with Broker(server.url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        await broker.enqueue_many([NewJob("q", max_attempts=2)] * len(sizes))
        for job, size in zip(await broker.claim("q", limit=len(sizes)), sizes, strict=True):
            await broker.nack(job, "é" * size, delay=0)
        claims = await broker.claim("q", limit=len(sizes))
        assert [job.last_error for job in claims] == ["é" * size for size in sizes]
        for job, size in zip(claims, sizes, strict=True):
            await broker.ack(job, result=bytes([size % 256]) * size)
        for stored, size in zip(await broker._engine.get([job.key for job in claims]), sizes, strict=True):
            assert stored is not None
            assert stored.result == bytes([size % 256]) * size
            assert stored.last_error == "é" * size
            assert [failure.message for failure in stored.errors] == ["é" * size]


@pytest.mark.parametrize("is_salted", [True, False])
async def test_the_result_of_a_repaired_job_is_returned_without_a_salt(
    server: Server, is_salted: bool
) -> None:
    """A result of layout 5 has none, and the rebuilt head has the flag in either case."""
    async with Broker(server.url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        claim = await running(broker)
        await broker.ack(claim, result=b'"result"')
        key = claim.key
        with client(server.url) as connection:
            DAMAGED.add(key)
            connection.hset("{dayjob}:jobs", key, b"\0" + connection.hget("{dayjob}:jobs", key)[1:])
            if not is_salted:
                connection.hset("{dayjob}:results", key, b'"result"')
        job = await broker.get(claim.id)
        assert job is not None
        assert job.result == b'"result"'


@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("first", range(15))
def test_ids_that_differ_in_two_bytes_give_different_salts(
    first: int, order: Literal["big", "little"]
) -> None:
    """Callers may give such ids."""
    keys = [bytes(first) + number.to_bytes(2, order) + bytes(14 - first) for number in range(JOBS)]
    facts = [record.facts(insertion(key, b"x" * 400))[0] for key in keys]
    assert max(Counter(facts).values()) <= MOST
