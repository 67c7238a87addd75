"""``dayjob demo``: run jobs that fail, wait, are cancelled or lose their worker, then audit them all."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import quote

import click

from dayjob.cli.demo.audit import Audit
from dayjob.cli.demo.scenario import run_scenario
from dayjob.cli.demo.screen import Screen
from dayjob.errors import ConfigError, DayjobError

Answer = TypeVar("Answer")


@click.command()
@click.option(
    "--jobs",
    type=click.IntRange(min=100, max=100_000),
    default=3000,
    show_default=True,
    metavar="N",
    help="How many jobs to enqueue, from 100 to 100,000; the default takes about ten seconds.",
)
@click.option(
    "--url",
    metavar="URL",
    default=None,
    help="The store for the jobs, which stay there. It must allow several processes and not have the demo's "
    "queues yet. Default: a SQLite file in a temporary folder, removed at the end.",
)
def demo(jobs: int, url: str | None) -> None:
    """Enqueue jobs of several kinds and run them in worker processes.

    Some fail and are retried, some are urgent, delayed or cancelled, some end as dead letters. One worker
    is killed while it runs jobs, and other workers run them again. At the end every job is accounted for.

    Exit codes: 0 every job is accounted for, 1 some are not (the output lists them), 2 the demo can't start.
    """
    try:
        audit = _run(jobs, url)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except DayjobError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError as error:
        raise click.Abort from error
    sys.exit(audit.exit_code)


def _run(jobs: int, url: str | None) -> Audit:
    with TemporaryDirectory(prefix="dayjob-demo-") as folder:
        store = f"sqlite:///{quote(folder)}/jobs.db" if url is None else url
        with Screen() as screen:
            screen.print(f"dayjob demo on {store}")
            audit = asyncio.run(_interruptible(run_scenario(store, jobs, Path(folder), screen)))
        screen.show(audit)
        return audit


async def _interruptible(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Cancel the work on Ctrl-C, SIGTERM and SIGHUP, except signals that the parent process ignores."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task
