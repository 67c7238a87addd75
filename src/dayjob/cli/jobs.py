"""``dayjob jobs``, ``show``, ``explain`` and ``cancel``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from rich.console import Group
from rich.text import Text

from dayjob.broker import Broker
from dayjob.cli.output import (
    ID,
    Column,
    confirm,
    console,
    json_option,
    limit_option,
    print_json,
    print_line,
    print_text,
    progress,
    show,
    table,
    watch_option,
    yes_option,
)
from dayjob.cli.store_command import NOTHING, OK, StoreCommand, fail, on_store, whole_id
from dayjob.inspect import Filter, Inspector, Page, Redaction, error_line
from dayjob.inspect.json_fields import ago, explanation_fields, indented, instant, span
from dayjob.inspect.redaction import DEFAULT
from dayjob.inspect.search import UNFINISHED, States
from dayjob.model.durations import SECOND
from dayjob.model.explanation import Explanation
from dayjob.model.job import Job, JobState
from dayjob.model.names import counted

COLUMNS = (
    ID,
    Column("queue", 2, 10),
    Column("task", 1, 16),
    Column("state"),
    Column("attempts", 5),
    Column("priority", 6),
    Column("enqueued", 3),
    Column("details", 4, 16, is_text=True),
)


def filter_options(states: tuple[JobState, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator for the options of a filter, by its fields."""
    options = (
        click.option("-q", "--queue", help="Only jobs of this queue."),
        click.option(
            "-s", "--state", type=click.Choice([each.value for each in states]),
            callback=lambda _, __, state: state and JobState(state), help="Only jobs in this state.",
        ),
        click.option("-t", "--task", help="Only jobs of this task."),
        click.option("--tenant", help="Only jobs of this tenant."),
        click.option(
            "-a", "--arg", "arguments", multiple=True, metavar="NAME=VALUE", callback=_pairs,
            help="Only jobs whose argument has this value, in JSON or as plain text. user.id=7 is a field of "
            "a value. May be repeated.",
        ),
        click.option(
            "--search", "text", metavar="TEXT",
            help="Only jobs with this text in id, task, tenant, dedup key, error, headers or arguments.",
        ),
    )  # fmt: skip

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _pairs(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{text!r}: write NAME=VALUE", context, option)
        pairs.append((name, value))
    return tuple(pairs)


@click.command(cls=StoreCommand)
@filter_options(tuple(JobState))
@limit_option
@click.option("--after", metavar="ID", help="Continue after this job, the last one of the previous page.")
@click.option("--oldest-first", is_flag=True, help="List the oldest jobs first.")
@json_option
@watch_option
def jobs(
    url: str, limit: int, after: str | None, oldest_first: bool, as_json: bool, watch: bool, **given: Any
) -> None:
    """List jobs, newest first.

    A search examines at most 10,000 records, and prints the id to continue after if there are more.

    \b
    Examples:
      dayjob jobs sqlite:///jobs.db --state dead
      dayjob jobs -q email -t shop.send_email --json
      dayjob jobs --search TimeoutError
      dayjob jobs -t shop.send_email --arg to=ada@example.com
    """
    wanted = Filter(**given)

    async def work(broker: Broker) -> None:
        inspector = Inspector(broker)
        last = None if after is None else await whole_id(broker, after)

        async def read() -> Page:
            return await inspector.page(wanted, last, limit, newest_first=not oldest_first)

        def fields(page: Page) -> dict[str, Any]:
            return {"jobs": [inspector.job_fields(job) for job in page.jobs], "after": page.after}

        await show(read, fields, _listing, as_json, watch)

    on_store(url, work)


def _listing(page: Page) -> Group:
    rows = [
        (
            job.id, job.queue, job.task, job.state.value, f"{job.attempts}/{job.max_attempts}", job.priority,
            ago(job.enqueued_us), _details(job),
        )
        for job in page.jobs
    ]  # fmt: skip
    lines = [] if page.found_all else [Text(f"There may be more: --after {page.after}")]
    return Group(table(COLUMNS, rows, empty="No jobs."), *lines)


def _details(job: Job) -> str | None:
    if job.state is JobState.SCHEDULED:
        return f"due {ago(job.run_us)}"
    if job.state is JobState.RUNNING:
        if job.progress is not None:
            return f"{job.progress[0]:.0%} {job.progress[1]}"
        return f"by {job.worker}" if job.worker else None
    if job.last_error:
        return job.last_error.strip().splitlines()[-1][:120] if job.last_error.strip() else None
    return None


@click.command(cls=StoreCommand, name="show")
@click.argument("id")
@click.option(
    "--redact", metavar="PATTERN", default=DEFAULT,
    help="Hide the values of headers and arguments whose names match this regular expression, and content "
    "that can't be searched for names. Default: names that look like secrets; '' hides nothing.",
)  # fmt: skip
@json_option
def show_job(url: str, id: str, redact: str, as_json: bool) -> None:
    """Show all details of a job. The beginning of its id is enough."""

    async def work(broker: Broker) -> None:
        inspector = Inspector(broker, Redaction(redact))
        found = await inspector.job(await whole_id(broker, id))
        if found is None:
            fail(
                f"there is no job {id}: the id is unknown, or the job finished and is no longer kept", NOTHING
            )
        job, explanation = found
        if as_json:
            print_json({**inspector.job_fields(job), "explanation": explanation_fields(explanation)})
        else:
            _print_details(inspector, job, explanation)

    on_store(url, work)


def _print_details(inspector: Inspector, job: Job, explanation: Explanation) -> None:
    took = (job.finished_us or 0) - (job.claimed_us or 0)
    fields = (
        ("id", job.id),
        ("queue", job.queue),
        ("task", job.task or None),
        ("state", job.state.value),
        ("priority", str(job.priority)),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("suspect", "yes" if job.suspect else None),
        ("tenant", job.tenant),
        ("dedup key", inspector.redaction.dedup_key(job.dedup_key, job.payload)),
        ("worker", job.worker),
        ("enqueued", instant(job.enqueued_us)),
        ("due", instant(job.run_us) if job.run_us != job.enqueued_us else None),
        ("expires", instant(job.expires_us)),
        ("claimed", instant(job.claimed_us)),
        ("lease until", instant(job.lease_us)),
        ("finished", instant(job.finished_us)),
        ("duration", span(took / SECOND) if job.finished_us and job.claimed_us else None),
        ("progress", None if job.progress is None else f"{job.progress[0]:.0%} {job.progress[1]}"),
        ("payload", _content(inspector, job.payload)),
        ("headers", None if not job.headers else str(inspector.redaction.headers(job.headers))),
        ("result", None if job.result is None else _content(inspector, job.result)),
        ("explanation", explanation.text),
        ("error", job.last_error),
    )
    for name, value in fields:
        if value is not None:
            print_line(f"{name:<12}", "bold", end="")
            print_text(value.replace("\n", "\n" + " " * 12))
    if job.errors:
        failures = [
            (failure.attempt, instant(failure.at_us), failure.worker, error_line(failure.message))
            for failure in job.errors
        ]
        columns = (
            Column("attempt"),
            Column("at", 1),
            Column("worker", 2, 12),
            Column("error", 0, 16, is_text=True),
        )
        console().print("", table(columns, failures, title="failures"))


def _content(inspector: Inspector, data: bytes) -> str:
    text = indented(inspector.redaction.content(data), 4000)
    return text if len(text) <= 4000 else f"{text[:4000]}\n... ({len(data):,} bytes in total)"


@click.command(cls=StoreCommand)
@click.argument("id")
@json_option
def explain(url: str, id: str, as_json: bool) -> None:
    """Explain why a job is not running, or where it runs. The beginning of its id is enough."""

    async def work(broker: Broker) -> int:
        explanation = await broker.explain(await whole_id(broker, id))
        if as_json:
            print_json(explanation_fields(explanation))
        else:
            for reason in explanation.reasons:
                print_line(reason.text)
        return NOTHING if explanation.state is None else OK

    raise SystemExit(on_store(url, work))


@click.command(cls=StoreCommand)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_options(UNFINISHED)
@click.option("--all", "everything", is_flag=True, help="All jobs that have not finished.")
@yes_option
@json_option
def cancel(url: str, ids: tuple[str, ...], everything: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Cancel waiting jobs, and request the cancel of running ones.

    Select them by their ids, of which the beginning is enough, or by a filter. A filter counts the jobs and
    asks for confirmation.

    \b
    Examples:
      dayjob cancel 01a1dfc5-800d-709f
      dayjob cancel -q email -s pending --tenant acme
      dayjob cancel -t shop.send_email --arg to=ada@example.com --yes
    """
    wanted = Filter(**given)
    if [bool(ids), wanted != Filter(), everything].count(True) != 1:
        raise click.UsageError("no jobs are selected: give one of ids, a filter such as --queue, or --all")

    async def work(broker: Broker) -> int:
        if ids:
            return await _cancel_ids(broker, ids, as_json)
        return await cancel_filtered(broker, [wanted], UNFINISHED, yes, as_json)

    raise SystemExit(on_store(url, work, writes=True))


async def _cancel_ids(broker: Broker, ids: tuple[str, ...], as_json: bool) -> int:
    whole = [await whole_id(broker, id) for id in ids]
    outcomes = dict(zip(whole, await broker.cancel_many(whole), strict=True))
    if as_json:
        print_json({id: outcome.value for id, outcome in outcomes.items()})
    else:
        texts = {
            "removed": "cancelled",
            "requested": "is running: cancel requested",
            "not_found": "not found, or already finished",
        }
        for id, outcome in outcomes.items():
            print_line(f"{id} {texts[outcome.value]}.")
    return OK if any(outcome.acted for outcome in outcomes.values()) else NOTHING


async def cancel_filtered(
    broker: Broker, filters: Sequence[Filter], states: States, yes: bool, as_json: bool = False
) -> int:
    """Count the jobs, ask for confirmation, and cancel them in chunks. Return the exit code."""
    inspector = Inspector(broker)
    total = sum([await inspector.count(filter, states) for filter in filters])
    if total == 0 and not as_json:
        print_line("There are no jobs to cancel.")
        return NOTHING
    confirm(f"Cancel {counted(total, 'job')}?", yes)
    removed = requested = 0
    with progress("cancelling", total) as update:
        for filter in filters:
            before = removed + requested
            done = await inspector.cancel(filter, states, lambda more: update(before + more))  # noqa: B023
            removed += done.removed
            requested += done.requested
    if as_json:
        print_json({"removed": removed, "requested": requested})
    else:
        running = f" Cancel of {counted(requested, 'running job')} requested." if requested else ""
        print_line(f"{counted(removed, 'job')} cancelled.{running}")
    return OK if removed or requested else NOTHING
