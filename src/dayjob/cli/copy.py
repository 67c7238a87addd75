"""``dayjob copy``: copy an object-storage database."""

from __future__ import annotations

import asyncio

import click

from dayjob.cli.output import print_line
from dayjob.cli.store_command import UNAVAILABLE, fail
from dayjob.engines.registry import copy_store, without_password
from dayjob.errors import ConfigError, DayjobError


@click.command()
@click.argument("source")
@click.argument("target")
def copy(source: str, target: str) -> None:
    """Copy the object-storage database at SOURCE to a new one at TARGET.

    Stop the processes that use SOURCE first. It is not changed. Use this for a backup, or for a database
    whose last write was made by a clock that was ahead: SlateDB refuses to write to it until that time, and
    the copy can be written at once.

    \b
    Example:
      dayjob copy s3://shop/jobs s3://shop/jobs-2

    Exit codes: 0 copied, 2 wrong usage or configuration, 3 the storage is not available or in use.
    """
    try:
        jobs = asyncio.run(copy_store(source, target))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except DayjobError as error:
        fail(str(error), UNAVAILABLE)
    print_line(f"{jobs:,} jobs copied to {without_password(target)}.")
