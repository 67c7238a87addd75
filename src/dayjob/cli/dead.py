"""``dayjob dead``: list, requeue and purge dead letters."""

from __future__ import annotations

import click

from dayjob.broker import Broker
from dayjob.cli.output import (
    ID,
    Column,
    confirm,
    console,
    json_option,
    limit_option,
    print_json,
    print_line,
    progress,
    table,
    yes_option,
)
from dayjob.cli.store_command import NOTHING, OK, StoreGroup, on_store, whole_id
from dayjob.inspect import DeadGroups, Inspector, dead_groups, error_line
from dayjob.inspect.dead import requeue_dead
from dayjob.inspect.json_fields import ago, dead_group_fields
from dayjob.model.names import counted

COLUMNS = (
    ID,
    Column("queue", 3, 8),
    Column("task", 0, 16),
    Column("attempts", 4),
    Column("died", 2),
    Column("error", 1, 16, is_text=True),
)
GROUP_COLUMNS = (
    Column("jobs"),
    Column("task", 0, 16),
    Column("queues", 3, 8, is_text=True),
    Column("latest", 2),
    Column("error", 1, 16, is_text=True),
)


@click.group(cls=StoreGroup, default="list")
def dead() -> None:
    """Dead letters: jobs that failed permanently. Without a subcommand, list them."""


@dead.command(name="list")
@click.option("-q", "--queue", help="Only jobs of this queue.")
@limit_option
@click.option("-g", "--group", is_flag=True, help="Group the latest 5,000 by their error.")
@json_option
def list_dead(url: str, queue: str | None, limit: int, group: bool, as_json: bool) -> None:
    """List dead jobs, the latest failure first."""

    async def work(broker: Broker) -> None:
        if group:
            _show_groups(await dead_groups(broker, queue), as_json)
            return
        jobs = await broker.latest_dead(queue, limit=limit)
        if as_json:
            inspector = Inspector(broker)
            print_json({"jobs": [inspector.job_fields(job) for job in jobs]})
            return
        rows = [
            (job.id, job.queue, job.task, f"{job.attempts}/{job.max_attempts}", ago(job.finished_us),
             error_line(job.last_error))
            for job in jobs
        ]  # fmt: skip
        console().print(table(COLUMNS, rows, empty="No dead jobs."))

    on_store(url, work)


def _show_groups(found: DeadGroups, as_json: bool) -> None:
    if as_json:
        print_json(dead_group_fields(found))
        return
    rows = [
        (group.count, group.task, ", ".join(group.queues), ago(group.latest.finished_us), group.error)
        for group in found.groups
    ]
    console().print(table(GROUP_COLUMNS, rows, empty="No dead jobs."))
    if found.examined < found.total:
        print_line(f"Grouped the latest {found.examined:,} of {found.total:,} dead jobs.")


@dead.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("-q", "--queue", help="All dead jobs of this queue.")
@click.option("--all", "everything", is_flag=True, help="All dead jobs of all queues.")
@yes_option
def requeue(url: str, ids: tuple[str, ...], queue: str | None, everything: bool, yes: bool) -> None:
    """Make dead jobs pending again, with their attempts reset."""
    _check_choice("ids, --queue or --all", bool(ids), queue is not None, everything)

    async def work(broker: Broker) -> int:
        if ids:
            return await _requeue_ids(broker, ids)
        stats = await broker.all_stats()
        names = [name for name, each in stats.items() if each.dead and queue in (None, name)]
        total = sum(stats[name].dead for name in names)
        if total == 0:
            print_line("There are no dead jobs to requeue.")
            return NOTHING
        confirm(f"Requeue {counted(total, 'dead job')} of {', '.join(names)}?", yes)
        with progress("requeuing", total) as update:
            done = await requeue_dead(broker, names, update)
        print_line(f"{counted(done, 'job')} requeued.")
        return OK if done else NOTHING

    raise SystemExit(on_store(url, work, writes=True))


async def _requeue_ids(broker: Broker, ids: tuple[str, ...]) -> int:
    done = 0
    for id in [await whole_id(broker, id) for id in ids]:
        requeued = await broker.requeue(id)
        print_line(f"{id} {'requeued' if requeued else 'is not a dead job'}.")
        done += requeued
    return OK if done else NOTHING


@dead.command()
@click.option("-q", "--queue", help="All dead jobs of this queue.")
@click.option("--all", "everything", is_flag=True, help="All dead jobs of all queues.")
@yes_option
def purge(url: str, queue: str | None, everything: bool, yes: bool) -> None:
    """Remove dead jobs permanently."""
    _check_choice("--queue or --all", queue is not None, everything)

    async def work(broker: Broker) -> int:
        stats = await broker.all_stats()
        total = sum(each.dead for name, each in stats.items() if queue in (None, name))
        if total == 0:
            print_line("There are no dead jobs to purge.")
            return NOTHING
        scope = "all queues" if queue is None else f"queue {queue}"
        confirm(f"Remove {counted(total, 'dead job')} of {scope} permanently?", yes)
        with progress("purging", total) as update:
            done = await broker.purge_dead(queue, on_progress=update)
        print_line(f"{counted(done, 'job')} removed.")
        return OK if done else NOTHING

    raise SystemExit(on_store(url, work, writes=True))


def _check_choice(choices: str, *given: bool) -> None:
    if given.count(True) != 1:
        raise click.UsageError(f"no dead jobs are selected: give one of {choices}")
