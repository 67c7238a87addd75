"""``dayjob worker``: runs an app's jobs, in this process or in several under a supervisor."""

from __future__ import annotations

import sys
from typing import Any

import click

from dayjob.cli.logging_setup import LEVELS, configure
from dayjob.cli.worker_options import WorkerOptions
from dayjob.cli.worker_process import run_child, run_worker
from dayjob.cli.worker_supervisor import supervise

_SECONDS = click.FloatRange(min=0, min_open=True)
_AT_LEAST_ONE = click.IntRange(min=1)

EXAMPLES = """\b
Examples:
  dayjob worker shop.jobs:app                     all queues that the app's tasks use
  dayjob worker jobs -q email,default -c 20       the app named "app" of jobs.py, two queues
  dayjob worker ./jobs.py:app --burst             do what there is to do, then exit
  dayjob worker shop.jobs:app --processes 4 --max-rss 500
  dayjob worker shop.jobs:app --reload            start again when the code changes

\b
Stopping: SIGTERM or Ctrl-C lets running jobs finish, up to --shutdown-timeout; what is then left is put
back, uncounted, for other workers. A second signal stops at once.

\b
Exit codes: 0 stopped or nothing left to do, 1 failed, 2 wrong usage or configuration,
3 the storage is not available.
"""


def _split(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...] | None:
    """None if not given; empty for all queues."""
    if not given:
        return None
    names = tuple(dict.fromkeys(name for text in given for name in text.split(",")))
    if "" in names:
        raise click.BadParameter("a queue's name is empty", context, option)
    if "*" in names and len(names) > 1:
        raise click.BadParameter("'*' means all queues, and can't be combined with others", context, option)
    return () if names == ("*",) else names


@click.command(epilog=EXAMPLES)
@click.argument("app")
@click.option(
    "-q", "--queues", metavar="NAMES", multiple=True, callback=_split,
    help="Queues to serve, separated by commas; the first has precedence. '*' means all that there are. "
    "By default the queues that the app's tasks and handlers are registered for.",
)  # fmt: skip
@click.option(
    "-c", "--concurrency", type=_AT_LEAST_ONE, default=100, show_default=True, metavar="N",
    help="How many jobs each process runs at once.",
)  # fmt: skip
@click.option(
    "--processes", type=_AT_LEAST_ONE, default=1, show_default=True, metavar="N",
    help="How many worker processes to run, under a supervisor that starts them again when they crash.",
)  # fmt: skip
@click.option(
    "--burst", is_flag=True, help="Exit when no job is ready and none runs; what is due later stays."
)
@click.option(
    "--job-timeout", type=_SECONDS, metavar="SECONDS",
    help="How long a run may take, for tasks without a timeout of their own. By default no limit.",
)  # fmt: skip
@click.option(
    "--shutdown-timeout", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
    help="How long running jobs may go on after the first signal.",
)  # fmt: skip
@click.option(
    "--lease", type=_SECONDS, metavar="SECONDS",
    help="How long a claim holds if this worker vanishes; it is renewed while the job runs. "
    "By default that of the queue.",
)  # fmt: skip
@click.option(
    "--name", help="The worker's name in logs and job records; with a supervisor, -1, -2, ... is added."
)
@click.option(
    "--unknown-task", type=click.Choice(["release", "dead"]), default="release", show_default=True,
    help="What becomes of a job whose task this app does not know: put back for other workers, or dead.",
)  # fmt: skip
@click.option(
    "--max-jobs", type=_AT_LEAST_ONE, metavar="N",
    help="Replace each process after that many jobs (for tasks that leak).",
)  # fmt: skip
@click.option(
    "--max-rss", type=_AT_LEAST_ONE, metavar="MIB",
    help="Replace a process whose own resident memory exceeds that many MiB; it drains first.",
)  # fmt: skip
@click.option(
    "--reload", is_flag=True,
    help="Start again when a source file of the project changes; running jobs are put back. For development.",
)  # fmt: skip
@click.option(
    "--take-over", is_flag=True,
    help="Take an object-storage queue over from the process that has it open, which then stops. "
    "For s3://, gs://, az:// and file://, which one process at a time can write to.",
)  # fmt: skip
@click.option(
    "--metrics", type=click.IntRange(1, 65535), metavar="PORT",
    help="Serve /metrics (Prometheus) and /healthz on this port of the loopback interface; with several "
    "processes, the next ports are those of the others. Needs dayjob[metrics].",
)  # fmt: skip
@click.option(
    "--dashboard", type=click.IntRange(0, 65535), metavar="PORT",
    help="Serve the dashboard of the app's storage on this port of the loopback address; 0 chooses one. "
    "With DAYJOB_DASHBOARD_TOKEN set, it asks for that token.",
)  # fmt: skip
@click.option("--uvloop/--no-uvloop", default=True, show_default=True, help="Use uvloop if it is installed.")
@click.option(
    "--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True,
    help="The least that is logged; debug includes a line for each job.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Logs go to standard error, as text for people or as one JSON object a line.",
)  # fmt: skip
@click.option("--child", type=int, hidden=True, help="The supervisor's line to this process.")
def worker(child: int | None, **given: Any) -> None:
    """Run the jobs of APP, written MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE.

    ":app" may be left out. The current folder is on the import path.
    """
    options = WorkerOptions(**given)
    if options.reload and options.burst:
        raise click.UsageError("--burst ends when there is nothing to do, --reload never: use one of them")
    configure(options.log_level, options.log_format)
    if child is not None:
        code = run_child(options, child)
    elif options.supervised:
        code = supervise(options)
    else:
        code = run_worker(options)
    sys.exit(code)
