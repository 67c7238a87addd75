"""``dayjob queues``, ``pause`` and ``resume``."""

from __future__ import annotations

import click
from rich.console import RenderableType

from dayjob.broker import Broker
from dayjob.cli.jobs import cancel_filtered
from dayjob.cli.output import Column, json_option, print_line, show, table, watch_option, yes_option
from dayjob.cli.store_command import StoreCommand, StoreGroup, on_store
from dayjob.inspect import Filter, Inspector, Overview
from dayjob.inspect.json_fields import queue_fields, span
from dayjob.inspect.search import WAITING

COUNTED = {"pending": 0, "limited": 2, "scheduled": 2, "running": 0, "done": 4, "dead": 0, "cancelled": 6}
"""The columns of the counters, with their ranks."""

COLUMNS = (
    Column("queue", 0, 12),
    Column("paused", 1),
    *(Column(name, rank) for name, rank in COUNTED.items()),
    Column("done/s", 5),
    Column("oldest waits", 3),
)


@click.group(cls=StoreGroup, default="list")
def queues() -> None:
    """Queues and their jobs by state. Without a subcommand, list them."""


@queues.command(name="list")
@json_option
@watch_option
def list_queues(url: str, as_json: bool, watch: bool) -> None:
    """Show every queue: jobs by state, jobs done per second, and the wait of the oldest pending job.

    "done" counts all jobs that ever succeeded. The other columns count the jobs stored now.

    \b
    Examples:
      dayjob queues sqlite:///jobs.db
      dayjob queues --watch               on the store of DAYJOB_URL
    """
    on_store(url, lambda broker: show(Inspector(broker).overview, queue_fields, _table, as_json, watch))


def _table(overview: Overview) -> RenderableType:
    rows = [
        (
            view.name,
            view.paused,
            *(getattr(view.stats, name) for name in COUNTED),
            view.done_per_second,
            None if view.waiting_seconds is None else span(view.waiting_seconds),
        )
        for view in overview.queues
    ]
    return table(COLUMNS, rows, empty="No queues. The first job of a queue creates it.")


@queues.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@yes_option
def clear(url: str, queues: tuple[str, ...], yes: bool) -> None:
    """Cancel all waiting jobs of these queues: pending, limited and scheduled ones. Running jobs continue.

    Cancelled jobs are removed, unless the queue retains them. Pause a queue first if jobs arrive faster than
    they are cancelled.
    """
    filters = [Filter(queue=queue) for queue in dict.fromkeys(queues)]
    raise SystemExit(
        on_store(url, lambda broker: cancel_filtered(broker, filters, WAITING, yes), writes=True)
    )


@click.command(cls=StoreCommand)
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
def pause(url: str, queues: tuple[str, ...]) -> None:
    """Stop claims from these queues, in all processes. They still accept jobs."""

    async def work(broker: Broker) -> None:
        used = await broker.all_stats()
        for queue in queues:
            await broker.pause(queue)
            print_line(f"{queue} paused.{'' if queue in used else ' It has never had a job.'}")

    on_store(url, work, writes=True)


@click.command(cls=StoreCommand)
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
def resume(url: str, queues: tuple[str, ...]) -> None:
    """Allow claims from these queues again."""

    async def work(broker: Broker) -> int:
        paused = await broker.paused()
        for queue in queues:
            await broker.resume(queue)
            print_line(f"{queue} resumed." if queue in paused else f"{queue} was not paused.")
        return int(paused.isdisjoint(queues))

    raise SystemExit(on_store(url, work, writes=True))
