"""The interface of the read model, for the command line, the dashboard and the metrics."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.errors import DayjobError
from dayjob.inspect import json_fields
from dayjob.inspect.bulk import BulkChanges
from dayjob.inspect.overview import OverviewReader
from dayjob.inspect.redaction import Redaction
from dayjob.model.explanation import Explanation
from dayjob.model.job import Job, JobState
from dayjob.model.worker_info import WorkerInfo
from dayjob.runtime.clock import SYSTEM

RUNNING_READ = 1_000
"""How many running jobs are read with the workers."""


class Health(Struct, frozen=True):
    """Whether the store answers, and how fast."""

    ok: bool
    problem: str | None = None
    round_trip_seconds: float | None = None


class WorkerView(Struct, frozen=True):
    info: WorkerInfo
    jobs: list[Job]


class Inspector(OverviewReader, BulkChanges):
    """Reads one broker's store.

    ``budget`` is a time in seconds: a method starts no further read after it, and returns the results so far.
    """

    def __init__(
        self, broker: Broker, redaction: Redaction | None = None, *, history_max_age: float = 0.0
    ) -> None:
        """``history_max_age``: seconds for which the samples of the throughput are cached."""
        OverviewReader.__init__(self, broker, history_max_age)
        BulkChanges.__init__(self, broker, redaction or Redaction())

    async def health(self) -> Health:
        begun = SYSTEM.elapsed()
        try:
            await self.broker.paused()
        except DayjobError as error:
            return Health(False, str(error))
        return Health(True, None, SYSTEM.elapsed() - begun)

    async def job(self, id: str) -> tuple[Job, Explanation] | None:
        """Return the full record of a job and the explanation of its state."""
        job = await self.broker.get(id)
        return None if job is None else (job, await self.broker.explain(id))

    async def workers(self) -> list[WorkerView]:
        running = await self.broker.jobs(state=JobState.RUNNING, limit=RUNNING_READ)
        live = await self.broker.workers()
        return [WorkerView(info, [job for job in running if job.worker == info.id]) for info in live]

    def job_fields(self, job: Job) -> dict[str, Any]:
        """Return a job for JSON, redacted."""
        return json_fields.job_fields(job, self.redaction)

    def arguments(self, job: Job) -> str:
        """Return the arguments of a job as one short line, redacted."""
        return json_fields.arguments_line(job.payload, self.redaction)
