"""The command group. Each command has its own module."""

from __future__ import annotations

import os
import sys
from itertools import chain
from pathlib import Path

import click

from dayjob._version import __version__
from dayjob.cli.bench import bench
from dayjob.cli.check import check
from dayjob.cli.completion import completion
from dayjob.cli.copy import copy
from dayjob.cli.dashboard import dashboard
from dayjob.cli.dead import dead
from dayjob.cli.demo.command import demo
from dayjob.cli.doctor import doctor
from dayjob.cli.enqueue import enqueue
from dayjob.cli.jobs import cancel, explain, jobs, show_job
from dayjob.cli.limits import limits
from dayjob.cli.migrate import migrate
from dayjob.cli.queues import pause, queues, resume
from dayjob.cli.scale import scale
from dayjob.cli.schedules import schedules
from dayjob.cli.store_command import CommandGroup
from dayjob.cli.worker.command import worker
from dayjob.cli.workers import workers

SECTIONS = {
    "Run": (worker, demo, bench),
    "Jobs": (enqueue, jobs, show_job, explain, cancel, dead),
    "Queues, schedules, workers": (queues, pause, resume, limits, schedules, workers, scale),
    "The store": (dashboard, doctor, check, migrate, copy, completion),
}
"""The commands in the order of the help, which is that of docs/cli.md."""

EXAMPLES = """\b
Examples:
  dayjob demo                        jobs, failures and a killed worker
  dayjob worker jobs:app             run the jobs of the app in jobs.py
  dayjob queues sqlite:///jobs.db    the jobs by queue and state
  dayjob COMMAND --help              the options of a command
"""


@click.group(
    cls=CommandGroup, sections=SECTIONS, epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.version_option(__version__, prog_name="dayjob")
@click.option(
    "-u", "--url", metavar="URL",
    help="The store, such as sqlite:///jobs.db. It may also be given after the command, or as DAYJOB_URL.",
)  # fmt: skip
@click.pass_context
def main(context: click.Context, url: str | None) -> None:
    """Durable background jobs for Python, on the storage you have."""
    _open_closed_streams()
    name = context.invoked_subcommand or ""
    command = main.commands[name]
    if url is not None:
        if not isinstance(command, click.Group) and all(each.name != "url" for each in command.params):
            raise click.UsageError(f"--url: dayjob {name} takes no URL of a store")
        context.default_map = {"demo": {"url": url}}


def _open_closed_streams() -> None:
    """Open ``/dev/null`` for closed standard streams, so that no file or socket takes their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 - open until the process ends
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


for command in chain.from_iterable(SECTIONS.values()):
    main.add_command(command)
