"""``dayjob scale``: print how many workers the queues need."""

from __future__ import annotations

import click
from msgspec import to_builtins

from dayjob.cli.output import json_option, print_json, print_line
from dayjob.cli.store_command import StoreCommand, on_store
from dayjob.inspect import Inspector
from dayjob.inspect.scaling import TARGET


@click.command(cls=StoreCommand)
@click.option(
    "-q", "--queue", "queues", multiple=True,
    help="A queue that the workers serve. May be repeated. Default: all queues.",
)  # fmt: skip
@click.option(
    "--target", type=click.FloatRange(min=0, min_open=True), default=TARGET, show_default=True,
    metavar="SECONDS", help="How long a job may wait before it starts.",
)  # fmt: skip
@click.option("--min", "least", type=click.IntRange(min=0), default=0, metavar="N", help="Never print less.")
@click.option("--max", "most", type=click.IntRange(min=0), metavar="N", help="Never print more.")
@json_option
def scale(
    url: str, queues: tuple[str, ...], target: float, least: int, most: int | None, as_json: bool
) -> None:
    """Print how many worker processes the queues need, for an autoscaler.

    The number follows from the wait of the oldest pending job, the pending jobs, and the jobs that the live
    workers end in a second.

    \b
    Examples:
      dayjob scale postgresql://db/shop --queue default
      dayjob scale -q email -q default --target 10 --min 1 --max 20 --json
    """
    load = on_store(url, lambda broker: Inspector(broker).load(queues))
    wanted = max(load.workers_wanted(target), least)
    wanted = wanted if most is None else min(wanted, most)
    if as_json:
        print_json({"wanted": wanted, "target_seconds": target, **to_builtins(load)})
    else:
        print_line(str(wanted))
