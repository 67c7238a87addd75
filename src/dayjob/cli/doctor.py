"""``dayjob doctor``: check the settings of a store, and find stuck jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from shlex import quote

import click
from msgspec import to_builtins

from dayjob.broker import Broker
from dayjob.cli.output import json_option, print_json, print_line
from dayjob.cli.store_command import NOTHING, OK, StoreCommand, on_store
from dayjob.engines.base import Diagnostic
from dayjob.engines.registry import without_password
from dayjob.inspect import EXAMINED, Filter, Inspector
from dayjob.inspect.search import WAITING
from dayjob.model.durations import SECOND
from dayjob.model.job import JobState
from dayjob.model.names import counted
from dayjob.model.worker_info import WorkerInfo
from dayjob.runtime.clock import SYSTEM
from dayjob.worker.unknown_tasks import import_hint

MAX_CLOCK_OFFSET = 5.0
"""Seconds by which this machine's clock may differ from the store's without a warning."""

SLOW = 0.25
_LONG_EXPIRED = 60 * SECOND
_REPORTED = 20
_STYLES = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command(cls=StoreCommand)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@json_option
def doctor(url: str, strict: bool, as_json: bool) -> None:
    """Check a store: settings, clocks, stuck jobs and workers. Each problem comes with a remedy.

    Exit codes: 0 no errors (with --strict: and no warnings), 1 errors, 3 the store is not available.
    """

    async def work(broker: Broker) -> list[Diagnostic]:
        return [diagnostic async for diagnostic in _examine(broker)]

    diagnostics = on_store(url, work)
    if as_json:
        print_json([to_builtins(diagnostic) for diagnostic in diagnostics])
    else:
        print_line(f"dayjob doctor on {without_password(url)}")
        for diagnostic in diagnostics:
            print_line(f"{diagnostic.level:>7}  ", _STYLES[diagnostic.level], end="")
            print_line(f"{diagnostic.check}: {diagnostic.text}")
            if diagnostic.remedy:
                print_line(f"         {diagnostic.remedy}")
    accepted = ("ok",) if strict else ("ok", "warning")
    raise SystemExit(OK if all(diagnostic.level in accepted for diagnostic in diagnostics) else NOTHING)


async def _examine(broker: Broker) -> AsyncIterator[Diagnostic]:
    started = SYSTEM.elapsed()
    await broker.paused()
    took = SYSTEM.elapsed() - started
    text = f"replied in {took * 1000:.1f} ms"
    if took > SLOW:
        yield Diagnostic("reachable", "warning", text, "check the network between this machine and the store")
    else:
        yield Diagnostic("reachable", "ok", text)
    for diagnostic in await broker.diagnose():
        yield diagnostic
    now, _ = await broker.history(1)
    offset = (SYSTEM.now() - now) / SECOND
    if abs(offset) > MAX_CLOCK_OFFSET:
        yield Diagnostic(
            "clock", "warning", f"this machine's clock is {offset:+.1f} s off the store's",
            "correct this clock so that logs agree; jobs are not affected, as the store's clock decides",
        )  # fmt: skip
    else:
        yield Diagnostic("clock", "ok", f"this machine and the store agree within {abs(offset):.1f} s")
    async for diagnostic in _jobs(broker, now):
        yield diagnostic
    async for diagnostic in _schedules(broker, now):
        yield diagnostic


async def _jobs(broker: Broker, now: int) -> AsyncIterator[Diagnostic]:
    stats = await broker.all_stats()
    workers = await broker.workers()
    paused = await broker.paused()
    running = await broker.jobs(state=JobState.RUNNING, limit=EXAMINED)
    alive = {worker.id for worker in workers}
    if workers:
        yield Diagnostic("workers", "ok", f"{len(workers)} alive")
    elif any(each.pending + each.limited + each.scheduled + each.running for each in stats.values()):
        yield Diagnostic(
            "workers",
            "error",
            "no worker is alive, and jobs are waiting",
            "start one: dayjob worker MODULE:app",
        )
    else:
        yield Diagnostic("workers", "ok", "no worker is alive, and no jobs are waiting")
    expired = [job for job in running if job.lease_us is not None and job.lease_us < now - _LONG_EXPIRED]
    if expired:
        yield Diagnostic(
            "leases", "error",
            f"{counted(len(expired), 'running job')} with a lease that expired over a minute ago",
            "no process runs the duties: start a worker, or a broker with duties=True",
        )  # fmt: skip
    else:
        yield Diagnostic(
            "leases", "ok", f"{counted(len(running), 'running job')}, none with an expired lease"
        )
    orphaned = [job for job in running if job.worker and job.worker not in alive]
    if orphaned and workers:
        yield Diagnostic(
            "orphans", "warning",
            f"{counted(len(orphaned), 'running job')} of workers that are not registered",
            "they return to their queues when their leases expire; or they were claimed without a worker",
        )  # fmt: skip
    for queue, each in stats.items():
        if each.pending and queue in paused:
            yield Diagnostic(
                "queues", "warning", f"{queue!r} is paused, with {counted(each.pending, 'job')} waiting",
                f"resume it: dayjob resume {'-- ' * queue.startswith('-')}{quote(queue)}",
            )  # fmt: skip
        elif each.pending and workers and not any(worker.serves(queue) for worker in workers):
            yield Diagnostic(
                "queues", "error",
                f"no live worker serves {queue!r}, with {counted(each.pending, 'job')} waiting",
                f"start one with -q {quote(queue)}",
            )  # fmt: skip
    async for diagnostic in _unknown_tasks(broker, workers):
        yield diagnostic
    dead = sum(each.dead for each in stats.values())
    if dead:
        yield Diagnostic(
            "dead letters", "warning", counted(dead, "dead job"), "list them: dayjob dead --group"
        )
    else:
        yield Diagnostic("dead letters", "ok", "none")


async def _unknown_tasks(broker: Broker, workers: Sequence[WorkerInfo]) -> AsyncIterator[Diagnostic]:
    """Report tasks that no worker of their queue has. Their jobs are pending, or snoozed and so scheduled."""
    waiting = {
        (job.queue, job.task)
        async for page in Inspector(broker).matching(Filter(), WAITING, EXAMINED)
        for job in page
        if job.task
    }
    served = {queue: [worker for worker in workers if worker.serves(queue)] for queue, _ in waiting}
    unknown = sorted(
        (queue, task)
        for queue, task in waiting
        if served[queue] and not any(task in worker.tasks for worker in served[queue])
    )
    for queue, task in unknown[:_REPORTED]:
        yield Diagnostic(
            "tasks", "error",
            f"jobs of task {task!r} wait on {queue!r}, and no live worker there has that task",
            f"{import_hint(task)}, or correct the name in the code that enqueues it",
        )  # fmt: skip


async def _schedules(broker: Broker, now: int) -> AsyncIterator[Diagnostic]:
    schedules = await broker.schedules()
    for schedule in schedules:
        if schedule.problem:
            yield Diagnostic(
                "schedules", "error", f"{schedule.id!r} does not fire: {schedule.problem}",
                "correct it, or remove it: dayjob schedules remove",
            )  # fmt: skip
        elif schedule.next_at and schedule.next_us is not None and schedule.next_us < now - _LONG_EXPIRED:
            yield Diagnostic(
                "schedules", "error", f"{schedule.id!r} was due over a minute ago",
                "no process runs the duties: start a worker",
            )  # fmt: skip
    if not any(schedule.problem for schedule in schedules):
        yield Diagnostic("schedules", "ok", counted(len(schedules), "schedule"))
