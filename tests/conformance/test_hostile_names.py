"""Hostile names: any text without NUL and lone surrogates is stored unchanged and never collides."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest

from dayjob import Broker, JobState, NewJob, QueueStats
from tests.support.arrange import claim_one, record
from tests.support.observe import every_job, ids

NAMES = [
    "a", "A", "á", "a:b", "a:", ":a", ":", "::", "a::b", "a/b", "a.b", "a,b", "a|b", "a;b",
    "a-b", "a_b", "axb", "a%b", "%", "%%", "_", "__", "*", "?", "[a]", "{a}", "a\\b", "\\", "'",
    "''", '"', '""', "a'b", 'a"b', "'; DROP TABLE jobs; --", "' OR '1'='1", "`", "$1", "?1",
    ":name", "%s", "{}", "null", "NULL", "None", "0", "00", "-1", "1e3", "true", " ", "  ",
    "a ", " a", "a  ", "\t", "a\t", "\n", "a\nb", "a\r\nb", "\r", "\x01", "\x1f", "\x7f",
    "\x80", "\x85", "\u2028", "\ufeff", "\ufffd", "\uffff", "é", "e\u0301", "É", "ﬁ", "fi", "ß",
    "ss", "SS", "İ", "i", "I", "\u0131", "K", "\u212a", "\u03a9", "\u2126", "🦫", "👩‍👩‍👧", "👩👩👧",
    "日本語", "\u202eabc", "\U0010ffff", "a" * 200, "a" * 199, "🦫" * 50,
]  # fmt: skip
"""All different, none over 200 bytes."""

LONG_NAMES = [*NAMES, "k" * 1024, "k" * 1023, "🦫" * 256]
"""For names of up to a kilobyte."""


def test_the_names_are_different_and_similar() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({unicodedata.normalize("NFC", name).casefold() for name in NAMES}) < len(NAMES)
    assert max(len(name.encode()) for name in NAMES) == 200


async def test_queue_names_are_stored_unchanged_and_never_collide(broker: Broker) -> None:
    enqueued = await broker.enqueue_many([NewJob(name, str(n).encode()) for n, name in enumerate(NAMES)])
    assert sorted(await broker.queues()) == sorted(NAMES)
    assert set(await broker.all_stats()) == set(NAMES)
    for number, name in enumerate(NAMES):
        assert (await record(broker, enqueued[number].id)).queue == name
        assert ids(await broker.jobs(name)) == [enqueued[number].id]
        assert await broker.stats(name) == QueueStats(pending=1)
    for number, name in enumerate(NAMES):
        [claim] = await broker.claim(name, limit=5)
        assert (claim.queue, claim.payload) == (name, str(number).encode())
        assert await broker.stats(name) == QueueStats(running=1)
        await broker.dead_letter(claim, "x")
        assert ids(await broker.dead_jobs(name)) == [claim.id]
    assert await broker.requeue_dead(NAMES[0]) == 1
    assert await broker.purge_dead(NAMES[1]) == 1
    assert len(await broker.dead_jobs(limit=1000)) == len(NAMES) - 2


async def test_queue_names_are_in_code_point_order(broker: Broker) -> None:
    await broker.enqueue_many([NewJob(name) for name in NAMES])
    names = await broker.queues()
    assert names == sorted(names)


async def test_one_claim_over_all_queues_follows_the_order_given(broker: Broker) -> None:
    order = NAMES[::-1]
    await broker.enqueue_many([NewJob(name) for name in NAMES])
    assert [claim.queue for claim in await broker.claim(order, limit=len(order))] == order


async def test_pausing_one_queue_pauses_no_other(broker: Broker) -> None:
    await broker.enqueue_many([NewJob(name) for name in NAMES])
    for paused, other in pairwise(NAMES):
        await broker.pause(paused)
        assert await broker.paused() == {paused}
        assert await broker.claim(paused) == []
        await broker.release(await claim_one(broker, other))
        await broker.resume(paused)
    assert await broker.paused() == set()


async def test_task_names_are_stored_unchanged_and_never_collide(broker: Broker) -> None:
    enqueued = await broker.enqueue_many([NewJob("q", task=name) for name in LONG_NAMES])
    claims = await broker.claim("q", limit=len(LONG_NAMES))
    assert [claim.task for claim in claims] == LONG_NAMES
    for number, name in enumerate(LONG_NAMES):
        assert (await record(broker, enqueued[number].id)).task == name
        assert ids(await broker.jobs(task=name)) == [enqueued[number].id]


async def test_tenants_are_stored_unchanged(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q", tenant=name) for name in LONG_NAMES])
    assert [job.tenant for job in await every_job(broker)] == LONG_NAMES
    assert [claim.tenant for claim in await broker.claim("q", limit=len(LONG_NAMES))] == LONG_NAMES


async def test_headers_are_stored_unchanged_and_never_collide(broker: Broker) -> None:
    headers = {name: f"{number} {name}" for number, name in enumerate(LONG_NAMES)}
    enqueued = await broker.enqueue("q", headers=headers)
    assert (await record(broker, enqueued.id)).headers == headers
    assert (await claim_one(broker)).headers == headers


async def test_dedup_keys_are_stored_unchanged_and_never_collide(broker: Broker) -> None:
    first = await broker.enqueue_many([NewJob("q", dedup_key=name) for name in LONG_NAMES])
    assert all(one.created for one in first)
    again = await broker.enqueue_many([NewJob("q", dedup_key=name) for name in LONG_NAMES])
    assert [one.id for one in again] == [one.id for one in first]
    assert [job.dedup_key for job in await every_job(broker)] == LONG_NAMES


async def test_queue_and_dedup_key_are_not_concatenated(broker: Broker) -> None:
    pairs = [("a", "b:c"), ("a:b", "c"), ("a:b:c", "d"), ("a", "b"), ("a:", "b"), ("a", ":b"), ("a\n", "b")]
    pairs += [("a", "\nb"), ("ab", "c"), ("a", "bc"), ("a'", "b"), ("a", "'b"), ("a%", "b"), ("a", "%b")]
    answers = [await broker.enqueue(queue, dedup_key=key) for queue, key in pairs]
    assert all(answer.created for answer in answers)
    assert len({answer.id for answer in answers}) == len(pairs)


async def test_worker_names_are_stored_unchanged(broker: Broker) -> None:
    for name in NAMES:
        await broker.enqueue("q")
        claim = await claim_one(broker, worker=name)
        assert (await record(broker, claim.id)).worker == name
        await broker.dead_letter(claim, name)
        [failure] = (await record(broker, claim.id)).errors
        assert (failure.worker, failure.message) == (name, name)


@pytest.mark.parametrize("name", ["a:b", "'", "🦫", "\n", "%"])
async def test_a_follow_up_keeps_its_names(broker: Broker, name: str) -> None:
    await broker.enqueue("start")
    follow_up = NewJob(name, task=name, tenant=name, dedup_key=name, headers={name: name})
    await broker.ack(await claim_one(broker, "start"), enqueue=[follow_up])
    [job] = await every_job(broker)
    assert (job.queue, job.task, job.tenant, job.dedup_key, job.headers) == (
        name,
        name,
        name,
        name,
        {name: name},
    )
    assert job.state is JobState.PENDING
