"""Misfits: stored jobs, schedules and results that the code of an app does not accept.

``dayjob check`` finds them before a deployment. The jobs are read in pages and the groups are bounded, so the
memory is, too. No text contains a value of an argument or a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dayjob.broker import Broker
from dayjob.broker.broker import OnProgress
from dayjob.inspect.search import DEAD, UNFINISHED, pages, sample
from dayjob.model.job import Job, JobState
from dayjob.model.names import shown
from dayjob.model.recurring import Schedule
from dayjob.model.worker_info import WorkerInfo

if TYPE_CHECKING:
    from dayjob.app import App

CHECKED = (*UNFINISHED, *DEAD, JobState.DONE)
"""Of done jobs the result is checked. The others have a call: a dead job may be requeued."""

RECURRING = "recurring"
"""Stands for schedules in the place of a state."""

EXAMPLES = 3
"""How many ids a group has."""

MAX_GROUPS = 1000
"""How many groups a report has. Further problems are counted together."""


class MisfitGroup(Struct):
    """The misfits of one task with the same problem."""

    task: str
    """Empty for jobs of a handler."""
    problem: str
    count: int = 0
    found: dict[str, int] = field(default_factory=dict)
    """The numbers of misfits by state, and that of schedules as ``recurring``."""
    queues: set[str] = field(default_factory=set)
    examples: list[str] = field(default_factory=list)
    """The first ids, of jobs or schedules."""


class MisfitReport(Struct):
    """The misfits found so far. ``complete`` is set when all jobs, or all of the sample, are examined."""

    examined: int = 0
    complete: bool = False
    by_problem: dict[tuple[str, str], MisfitGroup] = field(default_factory=dict)

    @property
    def groups(self) -> list[MisfitGroup]:
        """The groups, the largest first."""
        return sorted(self.by_problem.values(), key=lambda group: -group.count)

    @property
    def count(self) -> int:
        return sum(group.count for group in self.by_problem.values())

    def add(self, id: str, of: Job | Schedule, kind: str, problem: str) -> None:
        key = (of.task, problem)
        if key not in self.by_problem and len(self.by_problem) >= MAX_GROUPS:
            key = ("", "further problems")
        group = self.by_problem.setdefault(key, MisfitGroup(*key))
        group.count += 1
        group.found[kind] = group.found.get(kind, 0) + 1
        if len(group.examples) < EXAMPLES:
            group.examples.append(id)
        if len(group.queues) < MAX_GROUPS:
            group.queues.add(of.queue)


async def find_misfits(
    broker: Broker, app: App, report: MisfitReport, *, queues: Sequence[str] = (), most: int | None = None,
    on_progress: OnProgress | None = None,
) -> None:  # fmt: skip
    """Add the stored jobs, schedules and results that the app's code does not accept to the report.

    ``most``: examine that many jobs of each queue and state at most, spread over their ids.
    """
    code = _Code(app, await broker.workers())
    for schedule in await broker.schedules():
        if schedule.app == app.name or (queues and schedule.queue not in queues):
            continue  # The workers of an app replace the schedules that its code declares.
        report.examined += 1
        if (problem := code.call_problem(schedule)) is not None:
            report.add(schedule.id, schedule, RECURRING, problem)
    for queue in queues or (None,):
        for state in CHECKED:
            examine = code.result_problem if state is JobState.DONE else code.call_problem
            async for page in sample(broker, queue, state, most) if most else pages(broker, queue, state):
                for job in page:
                    if (problem := examine(job)) is not None:
                        report.add(job.id, job, state.value, problem)
                report.examined += len(page)
                if on_progress is not None:
                    on_progress(report.examined)
    report.complete = True


class _Code:
    """The tasks of an app, compared with stored calls and results."""

    def __init__(self, app: App, workers: Sequence[WorkerInfo]) -> None:
        self._app = app
        self._elsewhere = {task for worker in workers if worker.app != app.name for task in worker.tasks}
        """The tasks of the live workers of other apps."""
        self._unknown_task = lru_cache(MAX_GROUPS)(self._without_task)

    def call_problem(self, call: Job | Schedule) -> str | None:
        task = self._app.find(call)
        if task is not None:
            return None if task.arguments is None else task.arguments.misfit(call.payload)
        return self._unknown_task(call.task) if call.task else f"no handler for queue {shown(call.queue)}"

    def result_problem(self, job: Job) -> str | None:
        task = self._app.find(job)
        return None if task is None or not job.result else task.result.misfit(job.result)

    def _without_task(self, name: str) -> str | None:
        if name in self._elsewhere:
            return None
        similar = get_close_matches(name, self._app.tasks, 1)
        return f"no such task: renamed to {similar[0]!r}?" if similar else "no such task"
