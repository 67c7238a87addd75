"""Jobs by filter, page by page, at a bounded cost."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.inspect.redaction import Redaction
from dayjob.model.job import FINISHED, Job, JobState, known_key
from dayjob.runtime.clock import SYSTEM

EXAMINED = 10_000
"""How many records one page of a search examines at most."""

EXAMINED_BYTES = 32 * 2**20
"""About how many payload and result bytes one search reads. Few large records cost as much as many small."""

FIRST_CHUNK, CHUNK = 100, 1000
"""Records per read. The first read is small, because its records may be large."""

_INDEXED = frozenset({*FINISHED, JobState.RUNNING})
"""The states whose jobs every engine finds without reading others."""


class ReadBudget:
    """Counts the records that a search has read, and sizes the next read."""

    def __init__(self, records: int, seconds: float) -> None:
        self._records = records
        self._deadline = SYSTEM.elapsed() + seconds
        self._bytes = 0
        self.examined = 0

    def count(self, job: Job) -> None:
        self.examined += 1
        self._bytes += len(job.payload) + len(job.result or b"")

    @property
    def is_spent(self) -> bool:
        """Whether the search has read enough records or bytes."""
        return self.examined >= self._records or self._bytes >= EXAMINED_BYTES

    @property
    def is_overdue(self) -> bool:
        return SYSTEM.elapsed() >= self._deadline

    def next_chunk(self, first: int = FIRST_CHUNK) -> int:
        """Return how many records to read next. Records like those so far make an eighth of the bytes."""
        size = min(first, FIRST_CHUNK)
        if self.examined:
            size = max(min(CHUNK, EXAMINED_BYTES // 8 * self.examined // max(self._bytes, 1)), 1)
        return min(size, self._records - self.examined)


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
