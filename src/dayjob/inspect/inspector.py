"""The interface of the read model, for the command line, the dashboard and the metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.errors import DayjobError
from dayjob.inspect import bulk, dead, json_fields, misfits, search, tasks
from dayjob.inspect.overview import OverviewReader
from dayjob.inspect.redaction import Redaction
from dayjob.model.explanation import Explanation
from dayjob.model.job import Job, JobState
from dayjob.model.limits import LimitInfo
from dayjob.model.recurring import Schedule
from dayjob.model.worker_info import WorkerInfo
from dayjob.runtime.clock import SYSTEM

if TYPE_CHECKING:
    from dayjob.app import App

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


class Inspector(OverviewReader):
    """Reads one broker's store.

    ``budget`` is a time in seconds: a method starts no further read after it, and returns the results so far.
    """

    def __init__(
        self, broker: Broker, redaction: Redaction | None = None, *, history_max_age: float = 0.0
    ) -> None:
        """``history_max_age``: seconds for which the samples of the throughput are cached."""
        super().__init__(broker, history_max_age)
        self.redaction = redaction or Redaction()

    async def health(self) -> Health:
        begun = SYSTEM.elapsed()
        try:
            await self.broker.paused()
        except DayjobError as error:
            return Health(False, str(error))
        return Health(True, None, SYSTEM.elapsed() - begun)

    async def page(
        self, filter: search.Filter, after: str | None = None, limit: int = 50, *, newest_first: bool = True,
        budget: float = inf,
    ) -> search.Page:  # fmt: skip
        """Return up to ``limit`` matching jobs in id order."""
        return await search.search(
            self.broker, self.redaction, filter, after, limit, newest_first=newest_first, budget=budget
        )

    def matching(
        self, filter: search.Filter, states: search.States = search.UNFINISHED, most: int | None = None
    ) -> AsyncIterator[list[Job]]:
        """Yield all matching jobs in these states, in pages of bounded size."""
        return search.matching(self.broker, self.redaction, filter, states, most)

    async def count(self, filter: search.Filter, states: search.States = search.UNFINISHED) -> int:
        """Return the number of the jobs that ``matching`` yields."""
        return (await search.count(self.broker, self.redaction, filter, states))[0]

    async def count_within(
        self, filter: search.Filter, states: search.States, *, budget: float
    ) -> tuple[int, bool]:
        """Return the number of matching jobs found within the budget, and whether these are all."""
        return await search.count(self.broker, self.redaction, filter, states, budget)

    async def find_misfits(
        self, app: App, report: misfits.MisfitReport, *, queues: Sequence[str] = (),
        sample: int | None = None, on_progress: bulk.OnProgress | None = None,
    ) -> None:  # fmt: skip
        """Add the stored jobs, schedules and results that the app's code does not accept to the report.

        ``sample``: examine that many jobs of each queue and state at most, spread over their ids.
        """
        await misfits.find_misfits(self.broker, app, report, queues, sample, on_progress)

    # Changes, of the jobs that a filter selects. ``on_progress`` gets the number so far.

    async def cancel(
        self,
        filter: search.Filter,
        states: search.States = search.UNFINISHED,
        on_progress: bulk.OnProgress | None = None,
    ) -> bulk.Cancelled:
        """Cancel the matching jobs in these states."""
        return await bulk.cancel_matching(self.broker, self.redaction, filter, states, on_progress)

    async def requeue(self, filter: search.Filter, on_progress: bulk.OnProgress | None = None) -> int:
        """Requeue the matching dead jobs. Return their number."""
        return await bulk.requeue_matching(self.broker, self.redaction, filter, on_progress)

    async def purge(self, filter: search.Filter, on_progress: bulk.OnProgress | None = None) -> int:
        """Delete the matching dead jobs. Return their number."""
        return await bulk.purge_matching(self.broker, self.redaction, filter, on_progress)

    # Lists and records.

    async def ids_with_prefix(self, prefix: str) -> list[str]:
        """Return up to ``search.LISTED`` ids of stored jobs that begin with the prefix."""
        return await search.ids_with_prefix(self.broker, prefix)

    async def job(self, id: str) -> tuple[Job, Explanation] | None:
        """Return the full record of a job and the explanation of its state."""
        job = await self.broker.get(id)
        return None if job is None else (job, await self.broker.explain(id))

    async def dead_groups(self, queue: str | None = None, *, budget: float = inf) -> dead.DeadGroups:
        """Return the latest dead jobs grouped by error, the most frequent first."""
        return await dead.dead_groups(self.broker, queue, budget=budget)

    async def dead_page(
        self, queue: str | None = None, after: str | None = None, limit: int = 50
    ) -> search.Page:
        """Return dead jobs, the latest failure first."""
        return await dead.dead_page(self.broker, queue, after, limit)

    async def workers(self) -> list[WorkerView]:
        """Return the live workers with their running jobs."""
        running = await self.broker.jobs(state=JobState.RUNNING, limit=RUNNING_READ)
        live = await self.broker.workers()
        return [WorkerView(info, [job for job in running if job.worker == info.id]) for info in live]

    async def tasks(self, queue: str | None = None, *, budget: float = inf) -> tasks.TaskSample:
        """Return statistics of each task, from the latest finished jobs."""
        return await tasks.task_statistics(self.broker, queue, budget=budget)

    async def limits(self) -> list[LimitInfo]:
        return await self.broker.limits()

    async def schedules(self) -> list[Schedule]:
        return await self.broker.schedules()

    def job_fields(self, job: Job) -> dict[str, Any]:
        """Return a job for JSON, redacted."""
        return json_fields.job_fields(job, self.redaction)

    def arguments(self, job: Job) -> str:
        """Return the arguments of a job as one short line, redacted."""
        return json_fields.arguments_line(job.payload, self.redaction)

    def content(self, data: bytes) -> Any:
        """Return a payload or a result for JSON, redacted."""
        return self.redaction.content(data)
