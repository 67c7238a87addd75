"""``dayjob workers``: the live workers."""

from __future__ import annotations

import click

from dayjob.broker import Broker
from dayjob.cli.output import Column, json_option, watch_option
from dayjob.cli.store_command import StoreCommand, show_list
from dayjob.inspect.json_fields import ago, worker_fields
from dayjob.model.worker_info import WorkerInfo

COLUMNS = (
    Column("worker", 0, 24),
    Column("host", 6, 8),
    Column("pid", 7),
    Column("app", 5, 8),
    Column("version", 8),
    Column("queues", 1, 16, is_text=True),
    Column("tasks", 4),
    Column("running"),
    Column("started", 3),
    Column("seen", 2),
)


@click.command(cls=StoreCommand)
@json_option
@watch_option
def workers(url: str, as_json: bool, watch: bool) -> None:
    """List the live workers of all machines."""
    empty = "No live workers. Start one: dayjob worker MODULE:app"
    show_list(url, Broker.workers, worker_fields, COLUMNS, _row, empty, as_json, watch)


def _row(worker: WorkerInfo) -> tuple[object, ...]:
    return (
        worker.id, worker.host, str(worker.pid), worker.app, worker.version,
        ", ".join(worker.queues) or "all", len(worker.tasks), f"{worker.running}/{worker.slots}",
        ago(worker.started_us), ago(worker.seen_us),
    )  # fmt: skip
