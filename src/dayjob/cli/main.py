"""The command group; each command has a module of its own."""

from __future__ import annotations

import click

from dayjob._version import __version__
from dayjob.cli.demo import demo
from dayjob.cli.migrate import migrate
from dayjob.cli.worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dayjob")
def main() -> None:
    """Durable background jobs for Python, on the storage you have."""


main.add_command(demo)
main.add_command(migrate)
main.add_command(worker)
