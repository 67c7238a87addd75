"""The live workers and their running jobs."""

from __future__ import annotations

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.model.job import Job, JobState
from dayjob.model.worker_info import WorkerInfo

RUNNING_SHOWN = 1_000
"""How many running jobs are read."""


class WorkerView(Struct, frozen=True):
    info: WorkerInfo
    jobs: list[Job]


async def live_workers(broker: Broker) -> list[WorkerView]:
    running = await broker.jobs(state=JobState.RUNNING, limit=RUNNING_SHOWN)
    return [
        WorkerView(info, [job for job in running if job.worker == info.id]) for info in await broker.workers()
    ]
