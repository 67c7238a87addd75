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
from dayjob.inspect import Filter, Inspector, Page, error_pattern
from dayjob.inspect.json_fields import explanation_fields, span
from dayjob.model.durations import SECOND
from dayjob.model.explanation import Explanation
from dayjob.model.job import Job, JobState

STATES = [state.value for state in JobState]
COLUMNS = ("id", "queue", "task", "state", "attempts", "priority", "enqueued", "what about it")


@click.command(cls=StoreCommand)
@click.option("-q", "--queue", help="Of this queue only.")
@click.option("-s", "--state", type=click.Choice(STATES), help="In this state only.")
@click.option("-t", "--task", help="Of this task only.")
@click.option("--tenant", help="Of this tenant only.")
@click.option(
    "--search", metavar="TEXT", help="With this text in id, task, tenant, dedup key, error or headers."
)
@click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many."
)
@click.option("--after", metavar="ID", help="Go on after this job, the last one of the page before.")
@click.option("--oldest-first", is_flag=True, help="In the order of enqueuing, instead of newest first.")
@json_option
@watch_option
def jobs(
    url: str, queue: str | None, state: str | None, task: str | None, tenant: str | None, search: str | None,
    limit: int, after: str | None, oldest_first: bool, as_json: bool, watch: bool,
) -> None:  # fmt: skip
    """List jobs, newest first.

    A search examines at most 10,000 records, and says where to go on if it has not seen all.

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

        async def look() -> Group:
            return _listing(await inspector.page(wanted, after, limit, newest_first=not oldest_first))

        await show(look, watch)

    on_store(url, work)


def _listing(page: Page) -> Group:
    rows = [
        (
            job.id, job.queue, job.task, job.state.value, f"{job.attempts}/{job.max_attempts}", job.priority,
            ago(job.enqueued_us), _about(job),
        )
        for job in page.jobs
    ]  # fmt: skip
    lines = [] if page.found_all else [Text(f"There may be more: --after {page.after}")]
    return Group(table(None, COLUMNS, rows), *lines)


def _about(job: Job) -> str | None:
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
    """Show all there is to know of a job."""

    async def work(broker: Broker) -> None:
        inspector = Inspector(broker)
        found = await inspector.job(id)
        if found is None:
            fail(f"there is no job {id}: it never was, or it has finished and is not kept", NOTHING)
        job, why = found
        if as_json:
            print_json({**inspector.job_fields(job), "explanation": explanation_fields(why)})
        else:
            console().print(_whole(inspector, job, why))

    on_store(url, work)


def _whole(inspector: Inspector, job: Job, why: Explanation) -> Group:
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
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
        ("run took", span(took / SECOND) if job.finished_us and job.claimed_us else None),
        ("progress", None if job.progress is None else f"{job.progress[0]:.0%} {job.progress[1]}"),
        ("payload", _content(inspector, job.payload)),
        ("headers", None if not job.headers else str(inspector.redaction.headers(job.headers))),
        ("result", None if job.result is None else _content(inspector, job.result)),
        ("why", why.text),
        ("error", job.last_error),
    ):
        if value is not None:
            facts.add_row(name, escape(printable(value)))
    failures = [
        (failure.attempt, instant(failure.at_us), failure.worker, error_pattern(failure.message))
        for failure in job.errors
    ]
    parts = [table("failures", ("attempt", "at", "worker", "error"), failures)] if failures else []
    return Group(facts, *parts)


def _content(inspector: Inspector, data: bytes) -> str:
    text = msgspec.json.format(msgspec.json.encode(inspector.content(data)), indent=2).decode()
    return text if len(text) <= 4000 else f"{text[:4000]}\n... ({len(data):,} bytes in all)"


@click.command(cls=StoreCommand)
@click.argument("id")
@json_option
def explain(url: str, id: str, as_json: bool) -> None:
    """Say why a job is not running, or where it is."""

    async def work(broker: Broker) -> int:
        why = await broker.explain(id)
        if as_json:
            print_json(explanation_fields(why))
        else:
            for reason in why.reasons:
                click.echo(printable(reason.text))
        return NOTHING if why.state is None else OK

    raise SystemExit(on_store(url, work))


@click.command(cls=StoreCommand)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
def cancel(url: str, ids: tuple[str, ...], as_json: bool) -> None:
    """End waiting jobs, and ask running ones to stop."""

    async def work(broker: Broker) -> int:
        outcomes = {id: await broker.cancel(id) for id in ids}
        if as_json:
            print_json({id: outcome.value for id, outcome in outcomes.items()})
        else:
            said = {
                "removed": "cancelled",
                "requested": "is running and was asked to stop",
                "not_found": "is not there, or has finished",
            }
            for id, outcome in outcomes.items():
                click.echo(f"{id} {said[outcome.value]}.")
        return OK if any(outcome.acted for outcome in outcomes.values()) else NOTHING

    raise SystemExit(on_store(url, work, writes=True))
