"""``dayjob check``: find the stored jobs that the code about to be deployed does not accept."""

from __future__ import annotations

from typing import Any

import click

from dayjob.broker import Broker
from dayjob.cli.app_argument import load_app
from dayjob.cli.output import ID, Column, console, json_option, print_json, print_line, progress, table
from dayjob.cli.store_command import INTERRUPTED, NOTHING, OK, StoreCommand, on_store
from dayjob.inspect import Filter, Inspector, MisfitReport, find_misfits
from dayjob.inspect.json_fields import misfit_fields
from dayjob.inspect.misfits import CHECKED
from dayjob.model.job import JobState
from dayjob.model.names import counted

COLUMNS = (
    Column("task", 0, 16),
    Column("problem", 0, 24, is_text=True),
    Column("count"),
    Column("found", 1, 12),
    Column("queues", 2, 8),
    ID,
)


class AppCommand(StoreCommand):
    """A command on an app. Its store is the app's, unless a URL is given."""

    def invoke(self, ctx: click.Context) -> Any:
        ctx.params["app"] = load_app(ctx.params["app"])
        ctx.params["url"] = ctx.params["url"] or ctx.params["app"].url
        return super().invoke(ctx)


@click.command(cls=AppCommand)
@click.argument("app")
@click.option("-q", "--queue", "queues", multiple=True, help="Only jobs of this queue. May be repeated.")
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N",
    help="Examine N jobs of each state at most, spread over the time of their enqueue.",
)  # fmt: skip
@json_option
def check(url: str, app: Any, queues: tuple[str, ...], sample: int | None, as_json: bool) -> None:
    """Check whether the code of APP accepts the stored jobs, schedules and results, before it is deployed.

    Reports tasks that the code does not have, calls that do not fit their parameters, and results that are
    not of the annotated type. Ctrl-C ends the check and prints the report so far.

    \b
    Examples:
      dayjob check shop.jobs:app                       on the store of the app
      dayjob check shop.jobs:app sqlite:///jobs.db
      dayjob check shop.jobs:app --sample 10000 --json

    Exit codes: 0 everything fits, 1 something does not, 2 wrong usage or configuration, 3 the store is not
    available, 130 interrupted.
    """
    report = MisfitReport()

    async def work(broker: Broker) -> None:
        inspector = Inspector(broker)
        numbers = [
            await inspector.count(Filter(queue=queue), [state])
            for queue in queues or (None,)
            for state in CHECKED
            if state is not JobState.DONE  # Its counter has all successes ever, and not the stored jobs.
        ]
        total = sum(min(number, sample or number) for number in numbers)
        with progress("checking", total) as update:
            await find_misfits(
                broker, app, report, queues=queues, most=sample,
                on_progress=lambda done: update(min(done, total)),
            )  # fmt: skip

    code = OK
    try:
        on_store(url, work)
    except SystemExit as ended:
        if ended.code != INTERRUPTED:
            raise
        code = INTERRUPTED
    if as_json:
        print_json(misfit_fields(report))
    else:
        _print(report)
    raise SystemExit(code or (NOTHING if report.count else OK))


def _print(report: MisfitReport) -> None:
    rows = [
        (
            group.task, group.problem, group.count,
            ", ".join(f"{number:,} {state}" for state, number in group.found.items()),
            ", ".join(sorted(group.queues)), group.examples[0],
        )
        for group in report.groups
    ]  # fmt: skip
    if rows:
        console().print(table(COLUMNS, rows))
    examined = counted(report.examined, "record")
    if not report.complete:
        print_line(f"Interrupted after {examined}.", "yellow")
    if not report.count:
        print_line(f"No misfits in {examined}.")
        return
    print_line(
        f"{counted(report.count, 'misfit')} in {examined}. Keep the old tasks and parameters, with "
        "defaults, until these jobs have run; or edit, cancel or purge them."
    )
