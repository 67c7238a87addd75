"""``dayjob migrate``: migrate the layout of a store, or print the SQL that does."""

from __future__ import annotations

import asyncio

import click

from dayjob.cli.output import print_line, print_text
from dayjob.cli.store_command import StoreCommand
from dayjob.engines.registry import find_layout, without_password


@click.command(cls=StoreCommand)
@click.option("--sql", is_flag=True, help="Print the SQL, and change nothing.")
@click.option(
    "--from", "since", type=int, metavar="LAYOUT",
    help="With --sql: the layout to start from, 0 for none. Default: that of the store.",
)  # fmt: skip
def migrate(url: str, sql: bool, since: int | None) -> None:
    """Create the layout of a store, or migrate an older one.

    A worker or a broker does the same when it opens a store. Use this to migrate in a deployment step, or
    with a role that may create tables where the workers' role may not. Several may run at once. One that
    was stopped is continued by the next.

    \b
    Examples:
      dayjob migrate postgresql://localhost/shop
      dayjob migrate postgresql://localhost/shop --sql | psql shop

    Exit codes: 0 up to date, 2 wrong usage or configuration, 3 the storage is not available.
    """
    if since is not None and not sql:
        raise click.UsageError("--from is for --sql: add --sql, or leave it out")
    layout = find_layout(url)
    if layout is None:
        print_line(f"{without_password(url)} has no layout to migrate.")
    elif sql:
        print_text(asyncio.run(layout.script(since)), end="")
    else:
        before, after = asyncio.run(layout.apply(lambda text: print_text(text, err=True)))
        _print_result(without_password(url), before, after)


def _print_result(url: str, before: int, after: int) -> None:
    if before == after:
        print_line(f"{url} is up to date, with layout {after}.")
    elif before == 0:
        print_line(f"{url}: layout {after} created.")
    else:
        print_line(f"{url}: migrated from layout {before} to {after}.")
