"""``dayjob queues``, ``pause`` and ``resume``."""

from __future__ import annotations

import click
from rich.table import Table

from dayjob.broker import Broker
from dayjob.cli.output import json_option, print_json, show, table, watch_option
from dayjob.cli.store import StoreCommand, on_store
from dayjob.inspect import Inspector, Overview
from dayjob.inspect.json_fields import queue_fields, span

COLUMNS = (
    "queue", "paused", "pending", "scheduled", "running", "done", "dead", "cancelled", "done/s",
    "oldest waits",
)  # fmt: skip


@click.command(cls=StoreCommand)
@json_option
@watch_option
def queues(url: str, as_json: bool, watch: bool) -> None:
    """Show every queue: jobs by state, jobs done per second, and the wait of the oldest pending job.

    "done" counts all jobs that ever succeeded. The other columns count the jobs stored now.

    \b
    Examples:
      dayjob queues sqlite:///jobs.db
      dayjob queues --watch               on the store of DAYJOB_URL
    """

    async def work(broker: Broker) -> None:
        inspector = Inspector(broker)
        if as_json:
            print_json(queue_fields(await inspector.overview()))
        else:

            async def render() -> Table:
                return _table(await inspector.overview())

            await show(render, watch)

    on_store(url, work)


def _table(overview: Overview) -> Table:
    rows = [
        (
            view.name,
            view.paused,
            *(getattr(view.stats, name) for name in COLUMNS[2:8]),
            view.done_per_second,
            None if view.waiting_seconds is None else span(view.waiting_seconds),
        )
        for view in overview.queues
    ]
    return table(None, COLUMNS, rows)


@click.command(cls=StoreCommand)
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
def pause(url: str, queues: tuple[str, ...]) -> None:
    """Stop claims from these queues, in all processes. They still accept jobs."""

    async def work(broker: Broker) -> None:
        for queue in queues:
            await broker.pause(queue)
            click.echo(f"{queue} paused.")

    on_store(url, work, writes=True)


@click.command(cls=StoreCommand)
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
def resume(url: str, queues: tuple[str, ...]) -> None:
    """Allow claims from these queues again."""

    async def work(broker: Broker) -> int:
        paused = await broker.paused()
        for queue in queues:
            await broker.resume(queue)
            click.echo(f"{queue} resumed." if queue in paused else f"{queue} was not paused.")
        return int(paused.isdisjoint(queues))

    raise SystemExit(on_store(url, work, writes=True))
