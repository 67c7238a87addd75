"""Jobs by filter, page by page, at a bounded cost."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.inspect.read_budget import ReadBudget
from dayjob.inspect.redaction import Redaction
from dayjob.model.job import FINISHED, Job, JobState, known_key

EXAMINED = 10_000
"""How many records one page of a search examines at most."""

_INDEXED = frozenset({*FINISHED, JobState.RUNNING})
"""The states whose jobs every engine finds without reading others."""


class Page(Struct, frozen=True):
    """Some of the matching jobs. ``after`` is the cursor of the next page, None if this is the last."""

    jobs: list[Job]
    after: str | None
    examined: int

    @property
    def found_all(self) -> bool:
        return self.after is None


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs to list. ``text`` is searched for in id, task, tenant, dedup key, error and headers."""

    queue: str | None = None
    state: JobState | None = None
    task: str | None = None
    tenant: str | None = None
    text: str | None = None

    def matches(self, job: Job, redaction: Redaction) -> bool:
        """Return whether the job matches. Redacted values never match."""
        return (
            self.queue in (None, job.queue)
            and self.state in (None, job.state)
            and self.task in (None, job.task)
            and self.tenant in (None, job.tenant)
            and (not self.text or _contains(job, redaction.headers(job.headers), self.text.casefold()))
        )


async def search(
    broker: Broker, redaction: Redaction, filter: Filter, after: str | None, limit: int, *,
    newest_first: bool, budget: float,
) -> Page:  # fmt: skip
    """Return up to ``limit`` matching jobs in id order. A search for an id reads that job only.

    Stops after ``EXAMINED`` records, or starts no further read after ``budget`` seconds.
    """
    if filter.text and (key := known_key(filter.text.strip())) is not None and after is None:
        job = await broker.get(filter.text.strip())
        return Page([job] if job is not None and job.key == key else [], None, 1)
    indexed = filter.state in _INDEXED
    cost = ReadBudget(EXAMINED, budget)
    found: list[Job] = []
    while not cost.is_spent:
        size = cost.next_chunk(first=limit + 1)
        some = await broker.jobs(
            filter.queue if indexed else None,
            filter.state if indexed else None,
            after=after,
            limit=size,
            newest_first=newest_first,
        )
        for job in some:
            cost.count(job)
            if filter.matches(job, redaction):
                if len(found) == limit:
                    return Page(found, after, cost.examined)
                found.append(job)
            after = job.id
        if not some:
            return Page(found, None, cost.examined)
        if len(some) == size and cost.is_overdue:
            break  # A short read is near the end, which the next read confirms at little cost.
    return Page(found, after, cost.examined)


def _contains(job: Job, headers: Mapping[str, str], text: str) -> bool:
    texts = [job.id, job.task, job.tenant or "", job.dedup_key or "", job.last_error or ""]
    texts += [f"{name}: {value}" for name, value in headers.items()]
    return any(text in each.casefold() for each in texts)
