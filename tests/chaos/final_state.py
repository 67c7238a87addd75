"""Reads the final state of a storage, for the checker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from dayjob import Broker, Job
from dayjob.model.durations import to_instant
from dayjob.model.recurring import DUE_HEADER, SCHEDULE_HEADER
from tests.chaos.record import ENTRIES, Enqueue, Final, FinalJob, FinalSchedule, Settle, read
from tests.support.observe import every_job


def recorded_keys(folder: Path) -> list[str]:
    """Return the kv keys of all recorded calls."""
    keys: set[str] = set()
    for path in folder.glob(ENTRIES):
        for entry in read(path):
            if isinstance(entry, Enqueue):
                keys.update(key for job in entry.jobs for key in job.kv)
            elif isinstance(entry, Settle):
                keys.update(key for op in entry.ops for key in op.kv)
    return sorted(keys)


def final_job(job: Job) -> FinalJob:
    header = job.headers.get(DUE_HEADER)
    due = None if header is None else to_instant(datetime.fromisoformat(header), "due")
    return FinalJob(
        job.id, job.queue, job.state.value, job.attempts, job.max_attempts, job.dedup_key, job.dedup_until,
        job.headers.get(SCHEDULE_HEADER), due, job.last_error, job.finished_us,
    )  # fmt: skip


async def final_state(broker: Broker, keys: Iterable[str], first_due: Mapping[str, int]) -> Final:
    """Read all jobs, counters, the kv values of these keys, and the schedules with their first due times."""
    jobs = await every_job(broker)
    stored = [key for key in keys if await broker.kv_get(key.encode("latin-1")) is not None]
    return Final(
        [final_job(job) for job in jobs],
        {queue: msgspec.structs.asdict(stats) for queue, stats in (await broker.all_stats()).items()},
        stored,
        [
            FinalSchedule(schedule.id, schedule.every_us, first_due[schedule.id], schedule.last_us)
            for schedule in await broker.schedules()
            if schedule.id in first_due
        ],
    )
