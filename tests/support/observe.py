"""Seeing everything that a broker's storage shows: for comparisons before and after, and between engines."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dayjob import Broker, Job, JobState

FIELDS = (
    "id", "queue", "task", "payload", "headers", "tenant", "priority", "state", "attempts", "max_attempts",
    "epoch", "enqueued_at", "run_at", "claimed_at", "lease_expires_at", "finished_at", "expires_at",
    "last_error", "errors", "dedup_key", "dedup_until", "cancel_requested", "worker", "result", "progress",
)  # fmt: skip
"""Every public field of a job."""

CLAIM_FIELDS = (
    "id", "queue", "task", "payload", "headers", "tenant", "priority", "state", "attempts", "max_attempts",
    "epoch", "lease_expires_at", "cancel_requested",
)  # fmt: skip
"""What a claim carries: what running the job needs."""


def fields(job: Job, names: tuple[str, ...] = FIELDS) -> dict[str, Any]:
    return {name: getattr(job, name) for name in names}


def ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


async def every_job(broker: Broker) -> list[Job]:
    """All jobs in id order, page by page."""
    return await _pages(broker, None)


async def everything(broker: Broker) -> dict[str, Any]:
    """All jobs with all their fields, all counters, and the paused queues."""
    return {
        "jobs": [fields(job) for job in await every_job(broker)],
        "stats": await broker.all_stats(),
        "queues": await broker.queues(),
        "paused": await broker.paused(),
    }


async def check_counters(broker: Broker) -> None:
    """Every job is in one state, and the counters equal what listing gives (``done`` may count more)."""
    listed = await every_job(broker)
    counts = Counter((job.queue, job.state) for job in listed)
    stats = await broker.all_stats()
    assert {job.queue for job in listed} <= set(stats)
    assert list(stats) == await broker.queues()
    for queue, shown in stats.items():
        assert await broker.stats(queue) == shown
        for state in JobState:
            counter = getattr(shown, state.value)
            if state is JobState.DONE:
                assert counter >= counts[queue, state], f"{queue!r} {state}"
            else:
                assert counter == counts[queue, state], f"{queue!r} {state}"
    for state in JobState:
        assert [job.id for job in listed if job.state is state] == ids(await _pages(broker, state))


async def _pages(broker: Broker, state: JobState | None) -> list[Job]:
    found: list[Job] = []
    while page := await broker.jobs(state=state, after=found[-1].id if found else None, limit=5000):
        assert not found or page[0].id > found[-1].id, "the next page begins after the last"
        found += page
    return found
