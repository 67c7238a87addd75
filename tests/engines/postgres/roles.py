"""The main functions of the child processes of these tests."""

from __future__ import annotations

import asyncio

from dayjob import Broker, BrokerConfig, NewJob
from dayjob.engines.base import DocumentWrite
from tests.support.processes import send_to_test, wait_for_test

QUIET = BrokerConfig(duties=False)

KEYS = 1000


async def open_new(urls: list[str]) -> None:
    """Open each schema together with others, and enqueue a job in it."""
    for url in urls:
        broker = Broker(url, config=QUIET)
        send_to_test("ready")
        await wait_for_test()
        async with broker:
            send_to_test((await broker.enqueue("q")).created)


def wanted_keys(enqueuer: int, round: int) -> list[str]:
    """Return the keys of an enqueuer: the same keys for all, in different orders; some take only a few."""
    keys = [f"{round}: {number}" for number in range(KEYS)]
    start = enqueuer * 77 % KEYS
    keys = keys[start:] + keys[:start]
    if enqueuer % 2:
        keys.reverse()
    return keys[:20] if enqueuer % 5 == 0 else keys


async def enqueue_keys(url: str, enqueuers: list[int], rounds: int) -> None:
    """Enqueue a job for each key: short lists one by one, long ones in one batch.

    Send the replies of each enqueuer to the test after each round.
    """
    brokers = {enqueuer: Broker(url, config=QUIET) for enqueuer in enqueuers}
    await asyncio.gather(*(broker.open() for broker in brokers.values()))

    async def enqueue(enqueuer: int, round: int) -> list[tuple[str, bool]]:
        broker, keys = brokers[enqueuer], wanted_keys(enqueuer, round)
        if len(keys) < KEYS:
            enqueued = [await broker.enqueue("q", dedup_key=key) for key in keys]
        else:
            enqueued = await broker.enqueue_many([NewJob("q", dedup_key=key) for key in keys])
        return [(each.id, each.created) for each in enqueued]

    for round in range(rounds):
        send_to_test("ready")
        await wait_for_test()
        send_to_test(await asyncio.gather(*(enqueue(enqueuer, round) for enqueuer in enqueuers)))
    for broker in brokers.values():
        await broker.close()


async def count_up(url: str, times: int) -> None:
    """Count in a document, concurrently with other processes, with a job for every number."""
    async with Broker(url, config=QUIET) as broker:
        storage = broker._session.storage
        send_to_test("ready")
        await wait_for_test()
        counted = 0
        while counted < times:
            _, documents = await storage.documents("k")
            before = documents[0].value if documents else None
            number = b"%d" % (int(before or b"0") + 1)
            job = broker._validator.insertion(NewJob("q", number))
            counted += await storage.compare_and_set([DocumentWrite("k", "counter", before, number)], [job])
        send_to_test(counted)
