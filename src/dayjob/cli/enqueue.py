"""``dayjob enqueue``: enqueue one job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from dayjob.broker import Broker
from dayjob.cli.output import json_option, parse_time, print_json, print_line
from dayjob.cli.store_command import NOTHING, OK, StoreCommand, on_store
from dayjob.model.codec import UNDECODABLE
from dayjob.model.job import NewJob, by_name

_EXAMPLE = """'{"to": "ada"}'"""


@click.command(cls=StoreCommand)
@click.argument("task", required=False, default="")
@click.option("-q", "--queue", default="default", show_default=True, help="The queue of the job.")
@click.option(
    "-a", "--args", "arguments", metavar="JSON", help="The task's arguments, as an object by parameter name."
)
@click.option(
    "--payload",
    metavar="TEXT",
    help="The payload of a job without a task; @FILE reads a file, - reads stdin.",
)
@click.option("--priority", type=int, help="Lower runs first; 1000 is normal.")
@click.option(
    "--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Run the job after this delay."
)
@click.option(
    "--run-at", metavar="TIME", help="Run the job at this time, in ISO format; UTC unless it has a zone."
)
@click.option(
    "--expires", type=float, metavar="SECONDS", help="Cancel the job if it has not started by then."
)
@click.option(
    "--max-attempts",
    type=click.IntRange(min=1),
    help="The maximum number of runs. Default: that of the task.",
)
@click.option("--dedup-key", help="Enqueue only if no job with this key is waiting on the queue.")
@click.option(
    "--dedup", type=click.Choice(["latest"]), help="Replace the arguments and the run time of a waiting job."
)
@click.option(
    "--dedup-max-delay",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With --dedup latest: put the waiting job off no longer than this.",
)
@click.option(
    "--dedup-for",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Hold the dedup key for this long, also after the job has ended.",
)
@click.option(
    "--dedup-scope",
    type=click.Choice(["queue", "global"]),
    default="queue",
    show_default=True,
    help="Where the dedup key is unique: on the queue, or on all queues.",
)
@click.option("--tenant", help="The tenant of the job.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--id", help="The id of the job, a UUID. Enqueuing an existing id does nothing.")
@json_option
def enqueue(
    url: str, task: str, queue: str, arguments: str | None, payload: str | None, run_at: str | None,
    headers: tuple[str, ...], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Enqueue a job of TASK, the name under which the task is registered.

    The command does not import the task, so its queue and options must be given here. Unless given, the
    attempts are those of the task. Exits with 1 if the job already exists.

    \b
    Examples:
      dayjob enqueue shop.jobs.send_email -q email -a '{"to": "ada"}'
      dayjob enqueue -q raw --payload @photo.jpg
    """
    if payload is not None and (task or arguments):
        raise click.UsageError("--payload is for jobs without a task: use --args for a task's arguments")
    if payload is None and not task:
        raise click.UsageError("no job is given: pass the name of a task, or --payload for a job without one")
    data = _payload(payload) if payload is not None else _arguments(arguments) if task else b""

    async def work(broker: Broker) -> int:
        job = NewJob(
            queue, data, task, run_at=None if run_at is None else parse_time(run_at),
            headers=_headers(headers), **options,
        )  # fmt: skip
        enqueued = await broker.enqueue_job(by_name(job))
        if as_json:
            print_json({"id": enqueued.id, "created": enqueued.created})
        else:
            print_line(f"{enqueued.id}{'' if enqueued.created else ' already exists'}")
        return OK if enqueued.created else NOTHING

    raise SystemExit(on_store(url, work, writes=True))


def _arguments(text: str | None) -> bytes:
    try:
        value = msgspec.json.decode(text or "{}")
    except UNDECODABLE as error:
        raise click.UsageError(f"--args {text!r} is not JSON: {error}; write it like {_EXAMPLE}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f"--args {text!r}: pass an object by parameter name, like {_EXAMPLE}")
    return msgspec.json.encode(value)


def _payload(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise click.UsageError(f"--payload {text}: {error}") from None
    return text.encode()


def _headers(given: tuple[str, ...]) -> dict[str, str] | None:
    headers = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"--header {text!r}: write NAME=VALUE")
        headers[name] = value
    return headers or None
