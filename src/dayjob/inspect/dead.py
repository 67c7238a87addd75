"""Dead jobs: the latest failures first, or grouped by error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from math import inf

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.inspect.search import Page, ReadBudget, read_latest
from dayjob.model.job import Job, JobState, known_key
from dayjob.runtime.clock import yield_to_loop

GROUPED = 5_000
"""How many of the latest dead jobs are grouped by error."""

COMPARED_CHARACTERS = 500
"""How many characters of an error's line are compared."""

_SLICE = 20
"""How many jobs are grouped before other work of the loop runs."""


class DeadGroup(Struct, frozen=True):
    """Dead jobs of one task with the same error pattern."""

    error: str
    task: str
    count: int
    queues: list[str]
    latest: Job
    ids: list[str]


class DeadGroups(Struct, frozen=True):
    """The groups, the most frequent first, with the numbers of dead jobs examined and stored."""

    groups: list[DeadGroup]
    examined: int
    total: int


async def dead_groups(broker: Broker, queue: str | None = None, *, budget: float = inf) -> DeadGroups:
    """Group the latest ``GROUPED`` dead jobs, or those read in ``budget`` seconds, by their error."""
    latest, _ = await read_latest(partial(broker.latest_dead, queue), ReadBudget(GROUPED, budget))
    stats = await broker.all_stats()
    grouped: dict[tuple[str, str], list[Job]] = {}
    for number, job in enumerate(latest):
        if number % _SLICE == 0:
            await yield_to_loop()
        grouped.setdefault((job.task, error_pattern(job.last_error)), []).append(job)
    groups = [
        DeadGroup(
            error=error, task=task, count=len(jobs), queues=sorted({job.queue for job in jobs}),
            latest=jobs[0], ids=[job.id for job in jobs],
        )
        for (task, error), jobs in grouped.items()
    ]  # fmt: skip
    groups.sort(key=lambda group: -group.count)
    dead = sum(each.dead for name, each in stats.items() if queue in (None, name))
    return DeadGroups(groups, len(latest), dead)


async def requeue_dead(broker: Broker, queues: Iterable[str], on_progress: Callable[[int], None]) -> int:
    """Requeue the jobs of these queues that are dead now. Return their number."""
    done = 0
    for queue in queues:
        before = done
        done += await broker.requeue_dead(queue, on_progress=lambda more: on_progress(before + more))  # noqa: B023
    return done


async def dead_page(
    broker: Broker, queue: str | None = None, after: str | None = None, limit: int = 50
) -> Page:
    """Return dead jobs, the latest failure first. The cursor stays valid when its job is gone."""
    cost = ReadBudget(limit + 1, inf)
    before = _decode_cursor(after)
    found, _ = await read_latest(lambda last, size: broker.latest_dead(queue, last or before, size), cost)
    last = found[:limit][-1] if cost.is_spent else None
    cursor = None if last is None else f"{last.finished_us or 0}.{last.id}"
    return Page(found[:limit], cursor, len(found))


def _decode_cursor(cursor: str | None) -> Job | None:
    """Return a stand-in for the last dead job seen. Only its finish time and id matter."""
    time, _, id = (cursor or "").partition(".")
    key = known_key(id)
    if key is None or not (time.isascii() and time.isdigit()):
        return None
    return Job(
        key=key, queue="", task="", payload=b"", headers={}, tenant=None, priority=0, state=JobState.DEAD,
        attempts=0, max_attempts=0, epoch=0, enqueued_us=0, run_us=0,
        finished_us=min(int(time[:19]), 2**62),
    )  # fmt: skip


_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27,}|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\"", re.I)


def error_line(error: str | None) -> str:
    """Return the line of an error that names it, as lists show it."""
    return _line(error)[:300]


def error_pattern(error: str | None) -> str:
    """Return the error's line with numbers, ids and quoted values replaced, so that like errors are equal."""
    return _VARYING.sub("…", _line(error)[:COMPARED_CHARACTERS])[:300]


def _line(error: str | None) -> str:
    lines = (error or "no reason given").strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
