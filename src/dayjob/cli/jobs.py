"""``dayjob jobs``, ``show``, ``explain`` and ``cancel``."""

from __future__ import annotations

import click
import msgspec
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dayjob.broker import Broker
from dayjob.cli.output import (
    ago,
    console,
    instant,
    json_option,
    print_json,
    printable,
    show,
    table,
    watch_option,
)
from dayjob.cli.store import NOTHING, OK, StoreCommand, fail, on_store
from dayjob.inspect import Filter, Inspector, Page, error_line
from dayjob.inspect.json_fields import explanation_fields, span
from dayjob.model.durations import SECOND
from dayjob.model.explanation import Explanation
from dayjob.model.job import Job, JobState

STATES = [state.value for state in JobState]
COLUMNS = ("id", "queue", "task", "state", "attempts", "priority", "enqueued", "details")


@click.command(cls=StoreCommand)
@click.option("-q", "--queue", help="Only jobs of this queue.")
@click.option("-s", "--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("-t", "--task", help="Only jobs of this task.")
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option(
    "--search",
    metavar="TEXT",
    help="Only jobs with this text in id, task, tenant, dedup key, error or headers.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="The maximum number of jobs.",
)
@click.option("--after", metavar="ID", help="Continue after this job, the last one of the previous page.")
@click.option("--oldest-first", is_flag=True, help="List the oldest jobs first.")
@json_option
@watch_option
def jobs(
    url: str, queue: str | None, state: str | None, task: str | None, tenant: str | None, search: str | None,
    limit: int, after: str | None, oldest_first: bool, as_json: bool, watch: bool,
) -> None:  # fmt: skip
    """List jobs, newest first.

    A search examines at most 10,000 records, and prints the id to continue after if there are more.

    \b
    Examples:
      dayjob jobs sqlite:///jobs.db --state dead
      dayjob jobs -q email -t shop.send_email --json
      dayjob jobs --search TimeoutError
    """
    wanted = Filter(
        queue=queue, state=None if state is None else JobState(state), task=task, tenant=tenant, text=search
    )

    async def work(broker: Broker) -> None:
        inspector = Inspector(broker)
        if as_json:
            page = await inspector.page(wanted, after, limit, newest_first=not oldest_first)
            print_json({"jobs": [inspector.job_fields(job) for job in page.jobs], "after": page.after})
            return

        async def render() -> Group:
            return _listing(await inspector.page(wanted, after, limit, newest_first=not oldest_first))

        await show(render, watch)

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
    return Group(table(None, COLUMNS, rows), *lines)


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
@json_option
def show_job(url: str, id: str, as_json: bool) -> None:
    """Show all details of a job."""

    async def work(broker: Broker) -> None:
        inspector = Inspector(broker)
        found = await inspector.job(id)
        if found is None:
            fail(
                f"there is no job {id}: the id is unknown, or the job finished and is no longer kept", NOTHING
            )
        job, explanation = found
        if as_json:
            print_json({**inspector.job_fields(job), "explanation": explanation_fields(explanation)})
        else:
            console().print(_job_details(inspector, job, explanation))

    on_store(url, work)


def _job_details(inspector: Inspector, job: Job, explanation: Explanation) -> Group:
    fields = Table(show_header=False, box=None, pad_edge=False)
    fields.add_column(style="bold")
    fields.add_column(overflow="fold")
    took = (job.finished_us or 0) - (job.claimed_us or 0)
    for name, value in (
        ("id", job.id),
        ("queue", job.queue),
        ("task", job.task or None),
        ("state", job.state.value),
        ("priority", str(job.priority)),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("tenant", job.tenant),
        ("dedup key", job.dedup_key),
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
    ):
        if value is not None:
            fields.add_row(name, escape(printable(value)))
    failures = [
        (failure.attempt, instant(failure.at_us), failure.worker, error_line(failure.message))
        for failure in job.errors
    ]
    parts = [table("failures", ("attempt", "at", "worker", "error"), failures)] if failures else []
    return Group(fields, *parts)


def _content(inspector: Inspector, data: bytes) -> str:
    text = msgspec.json.format(msgspec.json.encode(inspector.content(data)), indent=2).decode()
    return text if len(text) <= 4000 else f"{text[:4000]}\n... ({len(data):,} bytes in total)"


@click.command(cls=StoreCommand)
@click.argument("id")
@json_option
def explain(url: str, id: str, as_json: bool) -> None:
    """Explain why a job is not running, or where it runs."""

    async def work(broker: Broker) -> int:
        explanation = await broker.explain(id)
        if as_json:
            print_json(explanation_fields(explanation))
        else:
            for reason in explanation.reasons:
                click.echo(printable(reason.text))
        return NOTHING if explanation.state is None else OK

    raise SystemExit(on_store(url, work))


@click.command(cls=StoreCommand)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
def cancel(url: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel waiting jobs, and request the cancel of running ones."""

    async def work(broker: Broker) -> int:
        outcomes = {id: await broker.cancel(id) for id in ids}
        if as_json:
            print_json({id: outcome.value for id, outcome in outcomes.items()})
        else:
            texts = {
                "removed": "cancelled",
                "requested": "is running: cancel requested",
                "not_found": "not found, or already finished",
            }
            for id, outcome in outcomes.items():
                click.echo(f"{id} {texts[outcome.value]}.")
        return OK if any(outcome.acted for outcome in outcomes.values()) else NOTHING

    raise SystemExit(on_store(url, work, writes=True))
