"""``dayjob worker``: runs an app's jobs, in this process or in several under a supervisor."""

from __future__ import annotations

import sys
from typing import Any

import click

from dayjob.cli.logging_setup import LEVELS, configure
from dayjob.cli.worker.options import Address, WorkerOptions
from dayjob.cli.worker.process import run_child, run_worker
from dayjob.cli.worker.supervisor import supervise

_SECONDS = click.FloatRange(min=0, min_open=True)
_AT_LEAST_ONE = click.IntRange(min=1)

EXAMPLES = """\b
Examples:
  dayjob worker shop.jobs:app              all queues of the app's tasks
  dayjob worker jobs -q email,default      two queues; "app" in jobs.py
  dayjob worker jobs -q high:5,low:1       two queues in turns, by weight
  dayjob worker ./jobs.py:app --burst      run the ready jobs, then exit
  dayjob worker shop.jobs:app --reload     restart when the code changes
  dayjob worker shop.jobs:app --processes 4 --max-rss 500

Stopping: SIGTERM or Ctrl-C lets running jobs finish, up to --shutdown-timeout. Jobs still running then are
released for other workers, and the run does not count as an attempt. A second signal stops at once.

Exit codes: 0 stopped or nothing left to do, 1 failed, 2 wrong usage or configuration,
3 the storage is not available.
"""


def _split(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the queue names; None if not given; empty for all queues."""
    if not given:
        return None
    names = tuple(dict.fromkeys(name for text in given for name in text.split(",")))
    if "" in names:
        raise click.BadParameter("a queue name is empty", context, option)
    if "*" in names and len(names) > 1:
        raise click.BadParameter("'*' means all queues, and can't be combined with others", context, option)
    return () if names == ("*",) else names


def _address(context: click.Context, option: click.Parameter, given: str | None) -> Address | None:
    if given is None:
        return None
    host, _, port = given.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536) or given.startswith(":"):
        raise click.BadParameter(
            f"{given!r}: write PORT or HOST:PORT, with a port up to 65535", context, option
        )
    return Address(host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port))


@click.command(epilog=EXAMPLES)
@click.argument("app")
@click.option(
    "-q", "--queues", metavar="NAMES", multiple=True, callback=_split,
    help="Queues to serve, separated by commas; the first has precedence. With a weight each, as in "
    "high:5,low:1, they take turns. '*' means all queues, in turns. "
    "Default: the queues of the app's tasks and handlers.",
)  # fmt: skip
@click.option(
    "-c", "--concurrency", type=_AT_LEAST_ONE, default=100, show_default=True, metavar="N",
    help="How many jobs each process runs at once.",
)  # fmt: skip
@click.option(
    "--threads", type=_AT_LEAST_ONE, metavar="N",
    help="How many of these may run in threads: tasks that are plain functions. Default: 4 per core, "
    "at least 10.",
)  # fmt: skip
@click.option(
    "--pool-processes", type=_AT_LEAST_ONE, metavar="N",
    help="How many of these may run in child processes: tasks with pool=\"process\". Default: the number of "
    "cores.",
)  # fmt: skip
@click.option(
    "--processes", type=_AT_LEAST_ONE, default=1, show_default=True, metavar="N",
    help="How many worker processes to run, under a supervisor that restarts them when they crash.",
)  # fmt: skip
@click.option("--burst", is_flag=True, help="Exit when no job is ready or running. Jobs due later stay.")
@click.option(
    "--job-timeout", type=_SECONDS, metavar="SECONDS",
    help="How long a run may take, for tasks without their own timeout. Default: no limit.",
)  # fmt: skip
@click.option(
    "--shutdown-timeout", type=click.FloatRange(min=0), default=20.0, show_default=True, metavar="SECONDS",
    help="How long running jobs may continue after the first signal.",
)  # fmt: skip
@click.option(
    "--lease", type=_SECONDS, metavar="SECONDS",
    help="How long a claim is valid without renewal; the worker renews it while the job runs. "
    "Default: the lease of the queue.",
)  # fmt: skip
@click.option(
    "--name", help="The worker's name in logs and job records; with a supervisor, -1, -2, ... is added."
)
@click.option(
    "--unknown-task", type=click.Choice(["release", "dead"]), default="release", show_default=True,
    help="The action for a job whose task or parameters this app does not have: release it for other "
    "workers, or dead-letter it.",
)  # fmt: skip
@click.option(
    "--max-jobs", type=_AT_LEAST_ONE, metavar="N",
    help="Replace each process after that many jobs, for tasks that leak memory.",
)  # fmt: skip
@click.option(
    "--max-rss", type=_AT_LEAST_ONE, metavar="MIB",
    help="Replace a process whose resident memory exceeds that many MiB, after its running jobs.",
)  # fmt: skip
@click.option(
    "--reload", is_flag=True,
    help="Restart when a source file of the project changes; running jobs are released. For development.",
)  # fmt: skip
@click.option(
    "--take-over", is_flag=True,
    help="Take over an object storage from the process that has it open, which then stops. "
    "For s3://, gs://, az:// and file://, which allow one writer.",
)  # fmt: skip
@click.option(
    "--metrics", metavar="[HOST:]PORT", callback=_address,
    help="Serve /metrics (Prometheus) and /healthz on this port of the loopback interface, or of HOST: "
    "0.0.0.0:9100 for all interfaces. Of several processes, each uses the next port. Needs dayjob[metrics].",
)  # fmt: skip
@click.option(
    "--metrics-host", multiple=True, metavar="NAME",
    help="Answer --metrics requests for this host name too; '*' for any. Without it: for IP addresses, "
    "localhost, and names without dots. May be repeated.",
)  # fmt: skip
@click.option(
    "--dashboard", type=click.IntRange(0, 65535), metavar="PORT",
    help="Serve the dashboard of the app's storage on this port of the loopback interface; 0 chooses one. "
    "DAYJOB_DASHBOARD_TOKEN is required to log in, or else the token of the link in the log.",
)  # fmt: skip
@click.option("--uvloop/--no-uvloop", default=True, show_default=True, help="Use uvloop if it is installed.")
@click.option(
    "--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True,
    help="The lowest level to log.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Log to standard error as text, or as one JSON object a line.",
)  # fmt: skip
@click.option(
    "--log-jobs/--no-log-jobs", default=None,
    help="Log a line for each run at the level info, or at debug. Default: at info on a terminal.",
)  # fmt: skip
@click.option("--child", type=int, hidden=True, help="The file descriptor of the link to the supervisor.")
def worker(child: int | None, **given: Any) -> None:
    """Run the jobs of APP, written MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE.

    ":app" may be left out. The current folder is on the import path.
    """
    options = WorkerOptions(**given)
    if options.reload and options.burst:
        raise click.UsageError(
            "--burst exits when no job is ready, and --reload never exits: use one of them"
        )
    configure(options.log_level, options.log_format)
    if child is not None:
        code = run_child(options, child)
    elif options.supervised:
        code = supervise(options)
    else:
        code = run_worker(options)
    sys.exit(code)
