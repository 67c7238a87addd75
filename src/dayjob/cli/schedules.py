"""``dayjob schedules``: recurring jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from dayjob.broker import Broker
from dayjob.cli.output import Column, confirm, json_option, print_line, watch_option, yes_option
from dayjob.cli.store_command import NOTHING, OK, StoreGroup, on_store, show_list
from dayjob.inspect.json_fields import ago, schedule_fields, when
from dayjob.model.recurring import Schedule

COLUMNS = (
    Column("id", 0, 16),
    Column("when", 1),
    Column("task", 5, 12),
    Column("queue", 6, 8),
    Column("last", 4),
    Column("next", 2),
    Column("declared by", 7, 8),
    Column("state", 3, 12, is_text=True),
)


@click.group(cls=StoreGroup, default="list")
def schedules() -> None:
    """Recurring jobs. Without a subcommand, list them."""


@schedules.command(name="list")
@json_option
@watch_option
def list_schedules(url: str, as_json: bool, watch: bool) -> None:
    """List recurring jobs with their last and next fire times."""
    show_list(url, Broker.schedules, schedule_fields, COLUMNS, _row, "No schedules.", as_json, watch)


def _row(schedule: Schedule) -> tuple[object, ...]:
    state = schedule.problem or ("paused" if schedule.paused else None)
    following = None if schedule.paused else ago(schedule.next_us)
    return (
        schedule.id, when(schedule), schedule.task, schedule.queue, ago(schedule.last_us), following,
        schedule.app, state,
    )  # fmt: skip


@schedules.command()
@click.argument("id")
def pause(url: str, id: str) -> None:
    """Pause a recurring job until it is resumed."""
    _act(url, id, Broker.pause_schedule, "paused")


@schedules.command()
@click.argument("id")
def resume(url: str, id: str) -> None:
    """Resume a recurring job from its next due time."""
    _act(url, id, Broker.resume_schedule, "resumed")


@schedules.command()
@click.argument("id")
@yes_option
def remove(url: str, id: str, yes: bool) -> None:
    """Remove a recurring job. A worker adds one that code declares again when it starts."""
    confirm(f"Remove the schedule {id}?", yes)
    _act(url, id, Broker.unschedule, "removed")


@schedules.command()
@click.argument("id")
def trigger(url: str, id: str) -> None:
    """Enqueue a recurring job now. Its due times do not change."""

    async def work(broker: Broker) -> None:
        print_line((await broker.trigger(id)).id)

    on_store(url, work, writes=True)


def _act(url: str, id: str, change: Callable[[Broker, str], Awaitable[bool]], done: str) -> None:
    async def work(broker: Broker) -> int:
        found = await change(broker, id)
        print_line(f"{id} {done if found else 'not found: list the schedules for its id'}.")
        return OK if found else NOTHING

    raise SystemExit(on_store(url, work, writes=True))
