"""``dayjob migrate``: migrate the layout of a store, or print the SQL that creates it."""

from __future__ import annotations

import asyncio
import sys

import click

from dayjob.engines.registry import find_layout, without_password
from dayjob.errors import ConfigError, DayjobError

UNAVAILABLE = 3


@click.command()
@click.argument("url", envvar="DAYJOB_URL")
@click.option("--sql", is_flag=True, help="Print the SQL of the newest layout, and change nothing.")
def migrate(url: str, sql: bool) -> None:
    """Create the layout of the store at URL, or migrate an older one.

    A worker or a broker does the same when it opens a store. Use this to migrate in a deployment step, or
    with a role that may create tables where the workers' role may not. Several may run at once. URL may be
    left out if DAYJOB_URL is set.

    \b
    Examples:
      dayjob migrate postgresql://localhost/shop
      dayjob migrate postgresql://localhost/shop --sql | psql shop

    \b
    Exit codes: 0 up to date, 2 wrong usage or configuration, 3 the storage is not available.
    """
    try:
        layout = find_layout(url)
        if layout is None:
            click.echo(f"{without_password(url)} has no layout to migrate.")
        elif sql:
            click.echo(layout.script(), nl=False)
        else:
            before, after = asyncio.run(layout.apply())
            _print_result(without_password(url), before, after)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except DayjobError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(UNAVAILABLE)


def _print_result(url: str, before: int, after: int) -> None:
    if before == after:
        click.echo(f"{url} is up to date, with layout {after}.")
    elif before == 0:
        click.echo(f"{url}: layout {after} created.")
    else:
        click.echo(f"{url}: migrated from layout {before} to {after}.")
