"""The timed pieces of work, each on an open broker."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from benchmarks.store_process import Store
from dayjob import Broker, Job, NewJob, Settlement

QUEUE = "work"
PAYLOAD = b"x" * 64
BATCH = 100
FILL = 10_000


async def timed(work: Awaitable[object]) -> float:
    """Return the seconds that the work takes."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def enqueue(broker: Broker, jobs: int, batch: int = 1000) -> None:
    """Add jobs in batches."""
    for start in range(0, jobs, batch):
        await broker.enqueue_many([NewJob(QUEUE, PAYLOAD)] * min(batch, jobs - start))


async def drain(broker: Broker, batches: int, batch: int = BATCH) -> float:
    """Claim and ack in batches. Return the longest of these calls in seconds."""
    longest = 0.0
    for _ in range(batches):
        start = time.perf_counter()
        jobs = await broker.claim(QUEUE, limit=batch)
        claimed = time.perf_counter()
        await ack_all(broker, jobs, batch)
        longest = max(longest, claimed - start, time.perf_counter() - claimed)
    return longest


async def ack_all(broker: Broker, jobs: list[Job], expected: int) -> None:
    results = await broker.settle_many([Settlement.ack(job) for job in jobs])
    if len(results) != expected or not all(result.applied for result in results):
        raise RuntimeError(f"settled {len(results)} claims, expected {expected}: the store ran out of jobs")


async def drain_one_by_one(broker: Broker, jobs: int) -> None:
    for _ in range(jobs):
        (job,) = await broker.claim(QUEUE)
        await broker.ack(job)


# In the process of a store.


async def fill(store: Store, pending: int, done: int, options: str) -> None:
    """Fill a queue with pending and retained done jobs, and add a hundred small queues."""
    broker = await store.use(retain=True, options=options)
    await broker.enqueue_many([NewJob(f"other {number}") for number in range(100)])
    await _in_steps(store, done, lambda some: _finish(broker, some))
    await _in_steps(store, pending, lambda some: enqueue(broker, some, FILL))


async def _in_steps(store: Store, jobs: int, step: Callable[[int], Awaitable[object]]) -> None:
    for start in range(0, jobs, FILL):
        some = min(FILL, jobs - start)
        await step(some)
        store.report(some)


async def _finish(broker: Broker, jobs: int) -> None:
    await enqueue(broker, jobs, FILL)
    await drain(broker, 1, jobs)


async def drain_and_refill(store: Store, batches: int, retain: bool) -> tuple[float, float]:
    """Drain and refill some batches. Return jobs drained per second, and the longest call in seconds."""
    broker = await store.use(retain=retain)
    start = time.perf_counter()
    longest = await drain(broker, batches)
    took = time.perf_counter() - start
    await enqueue(broker, batches * BATCH)
    return batches * BATCH / took, longest


async def time_stats(store: Store, calls: int, every_queue: bool) -> list[float]:
    """Return the seconds of each call."""
    broker = await store.use(retain=False)
    return [await timed(broker.all_stats() if every_queue else broker.stats(QUEUE)) for _ in range(calls)]


async def enqueue_stamped(store: Store, queue: str) -> None:
    """Enqueue a job with the current time as its payload."""
    broker = await store.use(retain=False)
    await broker.enqueue(queue, str(time.perf_counter_ns()).encode())


async def wait_idly(store: Store, seconds: float) -> float:
    """Return the share of a core that the process uses while a claim waits without a job."""
    broker = await store.use(retain=False)
    await broker.claim("idle", wait=0.2)
    start, used = time.perf_counter(), time.process_time()
    await broker.claim("idle", wait=seconds)
    return (time.process_time() - used) / (time.perf_counter() - start)
