"""``dayjob limits``: the stored limits and their use; change and remove them."""

from __future__ import annotations

import click

from dayjob.broker import Broker
from dayjob.cli.output import Column, json_option, print_line, watch_option
from dayjob.cli.store_command import StoreGroup, on_store, show_list
from dayjob.errors import ConfigError
from dayjob.inspect.json_fields import limit_fields
from dayjob.model.limits import Limit, LimitInfo

COLUMNS = (
    Column("limit", 0, 12),
    Column("at once", 1),
    Column("rate", 1),
    Column("burst", 3),
    Column("running", 0),
    Column("limited", 0),
    Column("app", 4, 8),
)


@click.group(cls=StoreGroup, default="list")
def limits() -> None:
    """Limits and their use. Without a subcommand, list them."""


@limits.command(name="list")
@json_option
@watch_option
def list_limits(url: str, as_json: bool, watch: bool) -> None:
    """Show every limit: its bounds, the units of running jobs, and the jobs that wait for room."""
    empty = "No limits. Tasks declare them: @app.task(limits=[...])"
    show_list(url, Broker.limits, limit_fields, COLUMNS, _row, empty, as_json, watch)


def _row(info: LimitInfo) -> tuple[object, ...]:
    settings = info.settings
    rate = None if settings.rate is None else f"{settings.rate:,} per {settings.per / 1_000_000:g} s"
    burst = None if settings.rate is None else settings.burst
    return (info.name, settings.running, rate, burst, info.running, info.limited, settings.app)


@limits.command(name="set")
@click.argument("name")
@click.option("--running", type=int, metavar="N", help="How many units may run at once.")
@click.option("--rate", type=int, metavar="N", help="How many units may start in the time of --per.")
@click.option(
    "--per", type=float, default=1.0, show_default=True, metavar="SECONDS", help="The time of the rate."
)
@click.option(
    "--burst", type=int, default=1, show_default=True, metavar="N", help="How many may start together."
)
def set_limit(url: str, name: str, running: int | None, rate: int | None, per: float, burst: int) -> None:
    """Store a limit. It takes effect at once, also for jobs that wait.

    NAME:KEY is the limit of that key only, queue:NAME that of a queue. A worker that starts stores the limits
    of its code again.
    """
    try:
        limit = Limit("", running, rate, per, burst)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None

    async def work(broker: Broker) -> None:
        await broker.set_limit(name, limit)
        print_line(f"Limit {name} set.")

    on_store(url, work, writes=True)


@limits.command()
@click.argument("name")
def remove(url: str, name: str) -> None:
    """Remove a limit. Its jobs have room then."""

    async def work(broker: Broker) -> int:
        removed = await broker.remove_limit(name)
        print_line(f"Limit {name} removed." if removed else f"There is no limit {name}.")
        return int(not removed)

    raise SystemExit(on_store(url, work, writes=True))
