"""Helpers that read the whole state of a storage through a broker, for comparisons."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dayjob import Broker, Job, JobState

FIELDS = (
    "id", "queue", "task", "payload", "headers", "tenant", "priority", "state", "attempts", "max_attempts",
    "epoch", "enqueued_at", "run_at", "claimed_at", "lease_expires_at", "finished_at", "expires_at",
    "last_error", "errors", "dedup_key", "dedup_until", "cancel_requested", "worker", "result", "progress",
    "limits", "limited_by", "turn",
)  # fmt: skip
"""Every public field of a job."""

CLAIM_FIELDS = (
    "id", "queue", "task", "payload", "headers", "tenant", "priority", "state", "attempts", "max_attempts",
    "epoch", "lease_expires_at", "cancel_requested", "limits", "turn",
)  # fmt: skip
"""The fields that a claim returns: those needed to run the job."""


def fields(job: Job, names: tuple[str, ...] = FIELDS) -> dict[str, Any]:
    return {name: getattr(job, name) for name in names}


def ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


async def every_job(broker: Broker) -> list[Job]:
    """Return all jobs in id order, read page by page."""
    return await _pages(broker, None)


async def everything(broker: Broker) -> dict[str, Any]:
    """Return all jobs with all fields, all counters, and the paused queues."""
    return {
        "jobs": [fields(job) for job in await every_job(broker)],
        "stats": await broker.all_stats(),
        "queues": await broker.queues(),
        "paused": await broker.paused(),
    }


async def check_counters(broker: Broker) -> None:
    """Check that every job is in one state, and that counters equal the listing (``done`` may be larger)."""
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
