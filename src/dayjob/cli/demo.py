"""``dayjob demo``: ten seconds of jobs that fail, wait, are cancelled and lose their worker, and add up."""

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

from dayjob.cli.demo_reckoning import Reckoning
from dayjob.cli.demo_screen import Screen
from dayjob.cli.demo_story import play
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
    help="Where to keep the jobs, and leave them: a store without the demo's queues, for several processes. "
    "By default a SQLite file in a temporary folder, removed at the end.",
)
def demo(jobs: int, url: str | None) -> None:
    """Enqueue jobs of several kinds and run them in worker processes.

    Some fail and are retried, some are urgent, delayed or cancelled, some end as dead letters; one worker
    is killed in the middle of its work, and its jobs run elsewhere. At the end every job is accounted for.

    Exits with 0 if all adds up, with 1 if it does not (saying what is wrong), and with 2 if it can't start.
    """
    try:
        reckoning = _run(jobs, url)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except DayjobError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError as error:
        raise click.Abort from error
    sys.exit(reckoning.exit_code)


def _run(jobs: int, url: str | None) -> Reckoning:
    with TemporaryDirectory(prefix="dayjob-demo-") as folder:
        where = f"sqlite:///{quote(folder)}/jobs.db" if url is None else url
        with Screen() as screen:
            screen.say(f"dayjob demo on {where}")
            reckoning = asyncio.run(_interruptible(play(where, jobs, Path(folder), screen)))
        screen.show(reckoning)
        return reckoning


async def _interruptible(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Clean up on Ctrl-C, SIGTERM and SIGHUP, but for those that whoever started it has ignored."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task
