"""Jobs by filter, page by page at a bounded cost or all in bounded memory, and by the beginning of an id."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from dayjob.broker import Broker
from dayjob.inspect.redaction import HIDDEN, Redaction
from dayjob.model.codec import UNDECODABLE
from dayjob.model.job import FINISHED, Job, JobState, id_text, known_key
from dayjob.model.recurring import SCHEDULE_HEADER
from dayjob.runtime.clock import SYSTEM

EXAMINED = 10_000
"""How many records one page of a search examines at most."""

LISTED = 10
"""How many ids that begin with a prefix are returned at most."""

EXAMINED_BYTES = 32 * 2**20
"""About how many bytes of records one search reads. Few large records cost as much as many small ones."""

FIRST_CHUNK, CHUNK = 100, 1000
"""Records per read. The first read is small, because its records may be large."""

SPOTS = 20
"""From how many spots a sample is read."""

WAITING = (JobState.SCHEDULED, JobState.PENDING, JobState.LIMITED)
DEAD = (JobState.DEAD,)
UNFINISHED = (*WAITING, JobState.RUNNING)
"""In the order in which a job passes through them, so that a walk does not miss it between two states."""

States = Sequence[JobState]

_INDEXED = frozenset({*FINISHED, JobState.RUNNING})
"""The states whose jobs every engine finds without reading others."""

_PREFIX = re.compile(r"[0-9a-f-]+", re.IGNORECASE)


class ReadBudget:
    """Counts the records that a search has read, and sizes the next read."""

    def __init__(self, records: int, seconds: float) -> None:
        self._records = records
        self._deadline = SYSTEM.elapsed() + seconds
        self._bytes = 0
        self.examined = 0

    def count(self, *jobs: Job) -> None:
        for job in jobs:
            self.examined += 1
            self._bytes += len(job.payload) + len(job.result or b"")
            self._bytes += sum(len(name) + len(value) for name, value in job.headers.items())
            self._bytes += sum(len(failure.message) for failure in job.errors)

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


async def read_latest(
    read: Callable[[Job | None, int], Awaitable[list[Job]]], cost: ReadBudget
) -> tuple[list[Job], bool]:
    """Return the jobs that reads return, each after the last job before it, and whether these are all."""
    found: list[Job] = []
    while not cost.is_spent and not (found and cost.is_overdue):
        some = await read(found[-1] if found else None, cost.next_chunk())
        cost.count(*some)
        if not some:
            return found, True
        found += some
    return found, False


class Page(Struct, frozen=True):
    """Some of the matching jobs. ``after`` is the cursor of the next page, None if this is the last."""

    jobs: list[Job]
    after: str | None
    examined: int

    @property
    def found_all(self) -> bool:
        return self.after is None


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs to list.

    ``text`` is searched for in id, task, tenant, dedup key, error, headers and arguments. ``arguments`` are
    pairs of a name, with dots for the fields of a value, and the value as JSON or as plain text.
    ``recurring`` selects the jobs of schedules (True), or all others (False).
    """

    queue: str | None = None
    state: JobState | None = None
    task: str | None = None
    tenant: str | None = None
    worker: str | None = None
    recurring: bool | None = None
    text: str | None = None
    arguments: tuple[tuple[str, str], ...] = ()

    def matches(self, job: Job, redaction: Redaction) -> bool:
        """Return whether the job matches. Redacted values never match."""
        if not (
            self.queue in (None, job.queue)
            and self.state in (None, job.state)
            and self.task in (None, job.task)
            and self.tenant in (None, job.tenant)
            and self.worker in (None, job.worker)
            and self.recurring in (None, SCHEDULE_HEADER in job.headers)
        ):
            return False
        if not self.text and not self.arguments:
            return True
        content = redaction.content(job.payload)
        return all(_has(content, name, value) for name, value in self.arguments) and (
            not self.text or _contains(job, redaction, content, self.text.casefold())
        )

    @property
    def counted(self) -> bool:
        """Whether the counters of the queues have the number of the matching jobs."""
        return self == Filter(queue=self.queue, state=self.state)

    def within(self, states: States) -> States:
        """Return those of the states whose jobs can match."""
        return [state for state in states if self.state in (None, state)]


class JobSearch:
    """Finds the jobs of one store by filters."""

    def __init__(self, broker: Broker, redaction: Redaction) -> None:
        self.broker = broker
        self.redaction = redaction

    async def page(
        self, filter: Filter, after: str | None = None, limit: int = 50, *, newest_first: bool = True,
        budget: float = inf,
    ) -> Page:  # fmt: skip
        """Return up to ``limit`` matching jobs in id order. A search for an id reads that job only.

        Stops after ``EXAMINED`` records, or starts no further read after ``budget`` seconds.
        """
        if filter.text and (key := known_key(filter.text.strip())) is not None and after is None:
            job = await self.broker.get(filter.text.strip())
            return Page([job] if job is not None and job.key == key else [], None, 1)
        indexed = filter.state in _INDEXED
        cost = ReadBudget(EXAMINED, budget)
        found: list[Job] = []
        while not cost.is_spent:
            size = cost.next_chunk(first=limit + 1)
            some = await self.broker.jobs(
                filter.queue if indexed else None,
                filter.state if indexed else None,
                after=after,
                limit=size,
                newest_first=newest_first,
            )
            for job in some:
                cost.count(job)
                if filter.matches(job, self.redaction):
                    if len(found) == limit:
                        return Page(found, after, cost.examined)
                    found.append(job)
                after = job.id
            if not some:
                return Page(found, None, cost.examined)
            if len(some) == size and cost.is_overdue:
                break  # A short read is near the end, which the next read confirms at little cost.
        return Page(found, after, cost.examined)

    async def matching(
        self, filter: Filter, states: States = UNFINISHED, most: int = 2**62, *, short_reads: bool = False
    ) -> AsyncIterator[list[Job]]:
        """Yield all matching jobs in these states, one state after the other, in pages of bounded size.

        A page may be empty. Examines at most ``most`` records in each state. A job that is enqueued meanwhile
        may be left out. With ``short_reads`` no read is longer than that of a page: an engine that looks for
        a rare task reads all waiting jobs.
        """
        for state in filter.within(states):
            task = None if short_reads or state in _INDEXED else filter.task
            async for some in pages(self.broker, filter.queue, state, task, most=most):
                yield [job for job in some if job.state is state and filter.matches(job, self.redaction)]

    async def count(self, filter: Filter, states: States = UNFINISHED) -> int:
        """Return the number of the jobs that ``matching`` yields."""
        return (await self.count_within(filter, states, budget=inf))[0]

    async def count_within(self, filter: Filter, states: States, *, budget: float) -> tuple[int, bool]:
        """Return the number of the jobs that ``matching`` yields, and whether it is exact.

        It is from the counters, if they have it. Otherwise the jobs are read, and after ``budget`` seconds
        the number is that of the jobs found so far.
        """
        if filter.counted:
            stats = await self.broker.all_stats()
            chosen = [each for name, each in stats.items() if filter.queue in (None, name)]
            return sum(getattr(each, state.value) for each in chosen for state in filter.within(states)), True
        deadline = SYSTEM.elapsed() + budget
        found = 0
        async for page in self.matching(filter, states, short_reads=budget < inf):
            found += len(page)
            if SYSTEM.elapsed() >= deadline:
                return found, False
        return found, True


async def sample(broker: Broker, queue: str | None, state: JobState, most: int) -> AsyncIterator[list[Job]]:
    """Yield up to ``most`` jobs in this state, in pages of bounded size, from spots spread over their ids."""
    first = await broker.jobs(queue, state, limit=1)
    last = await broker.jobs(queue, state, limit=1, newest_first=True)
    if not first or not last:
        return
    start, end = (int.from_bytes(each[0].key) for each in (first, last))
    after = ""
    for number in range(SPOTS):
        spot = max(start + (end - start) * number // SPOTS - 1, 0)
        after = max(after, id_text(spot.to_bytes(16)))
        size = -(-most // (SPOTS - number))
        async for some in pages(broker, queue, state, after=after, most=size):
            yield some
            after, most = some[-1].id, most - len(some)


async def pages(
    broker: Broker, queue: str | None, state: JobState, task: str | None = None, *,
    after: str | None = None, most: int = 2**62,
) -> AsyncIterator[list[Job]]:  # fmt: skip
    """Yield up to ``most`` jobs in this state, in id order and in pages of bounded size."""
    cost = ReadBudget(most, inf)
    while (size := cost.next_chunk()) > 0:
        some = await broker.jobs(queue, state, task, after, size)
        cost.count(*some)
        if not some:
            return
        yield some
        after = some[-1].id


async def ids_with_prefix(broker: Broker, prefix: str) -> list[str]:
    """Return up to ``LISTED`` ids of stored jobs that begin with the prefix. A whole id is not looked up."""
    if (key := known_key(prefix)) is not None:
        return [id_text(key)]
    digits = prefix.replace("-", "").lower()
    if not _PREFIX.fullmatch(prefix) or not 0 < len(digits) < 32:
        return []
    first = int(digits.ljust(32, "0"), 16)
    before = None if first == 0 else id_text((first - 1).to_bytes(16))
    jobs = await broker.jobs(after=before, limit=LISTED)
    return [job.id for job in jobs if job.id.replace("-", "").startswith(digits)]


def _has(content: Any, name: str, value: str) -> bool:
    for part in name.split("."):
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return content != HIDDEN and (content == value or msgspec.json.encode(content) == _compact(value))


def _compact(value: str) -> bytes:
    """Return JSON without spaces, or the text as it is if it is no JSON."""
    try:
        return msgspec.json.encode(msgspec.json.decode(value))
    except UNDECODABLE:
        return value.encode()


def _contains(job: Job, redaction: Redaction, content: Any, text: str) -> bool:
    texts = [job.id, job.task, job.tenant or "", job.last_error or ""]
    texts.append(redaction.dedup_key(job.dedup_key, job.payload) or "")
    texts += [f"{name}: {value}" for name, value in redaction.headers(job.headers).items()]
    return any(text in each.casefold() for each in texts) or _holds(content, text)


def _holds(content: Any, text: str) -> bool:
    """Return whether a value of the arguments contains the text, at any depth."""
    left = [content]
    while left:
        value = left.pop()
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
            continue
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if shown != HIDDEN and text in shown.casefold():
            return True
    return False
