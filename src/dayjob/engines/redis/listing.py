"""Looking at jobs in id order, over whichever sorted set has the fewest entries to pass over.

Finished and pending jobs are listed from sets of their own, in which each queue, or each priority of it, is a
run in id order. Of the others, those in a state that few are in come from that state's set; else all ids are
walked. Records are read after their ids and checked again, so each is shown as it was at one moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from heapq import merge
from itertools import groupby, islice

from dayjob.engines.base import JobQuery
from dayjob.engines.redis import record
from dayjob.engines.redis.link import Command, Link
from dayjob.engines.redis.record import CODES, TIME
from dayjob.model.job import FINISHED, Job, JobState, QueueStats

SPARSE = 50_000
"""Up to this many jobs in a state, listing them sorts the state's own set; above, it walks the ids."""

RUNS = 100
"""How many runs are asked for at once; pending jobs in more than these are not listed by runs."""

PAGE = 1000
"""How many ids or records are read at once."""

_BEYOND = b"\xff" * 25
"""Above every time and id."""

_COUNTED = (
    JobState.PENDING, JobState.SCHEDULED, JobState.RUNNING, JobState.DONE, JobState.DEAD, JobState.CANCELLED,
)  # fmt: skip


async def stats(link: Link) -> dict[str, QueueStats]:
    """The counters of every queue ever used, in name order."""
    keys = link.place.keys
    names, flat = await link.ask(("SMEMBERS", keys.queues), ("HGETALL", keys.counts))
    counts = dict(zip(flat[::2], flat[1::2], strict=True))

    def count(queue: bytes, state: JobState) -> int:
        return int(counts.get(b"%d%b" % (CODES[state], queue), 0))

    found = {name.decode(): QueueStats(*(count(name, state) for state in _COUNTED)) for name in names}
    return dict(sorted(found.items()))


async def get(link: Link, keys: Sequence[bytes], *, mended: bool = False) -> list[Job | None]:
    """The full records; those whose head can't be read are mended first."""
    names = link.place.keys
    commands: list[Command] = [
        ("HMGET", names.jobs, *keys[start : start + PAGE]) for start in range(0, len(keys), PAGE)
    ]
    answers = await link.ask(*commands) if commands else []
    blobs = [blob for answer in answers for blob in answer]
    found: list[Job | None] = []
    unreadable: list[bytes] = []
    for key, blob in zip(keys, blobs, strict=True):
        try:
            found.append(None if blob is None else record.full_job(key, blob))
        except record.Unreadable:
            found.append(None)
            unreadable.append(key)
    if unreadable and not mended:
        await link.tend("mend", b"".join(unreadable))
        return await get(link, keys, mended=True)
    return found


async def position(link: Link, key: bytes, limit: int) -> int:
    """How many jobs go before a pending one; the server counts them without walking over them."""
    (job,) = await get(link, [key])
    if job is None or job.state is not JobState.PENDING:
        return 0
    head = job.queue.encode() + b"\0"
    place = head + job.priority.to_bytes(4) + key
    count: int = (await link.ask(("ZLEXCOUNT", link.place.keys.pending, b"[" + head, b"(" + place)))[0]
    return min(count, limit)


async def find(link: Link, listing: JobQuery) -> list[Job]:
    found: list[Job] = []
    if listing.limit > 0:
        async for page in _pages(link, listing):
            found += [job for job in await get(link, page) if job is not None and _fits(job, listing)]
            if len(found) >= listing.limit:
                return found[: listing.limit]
    return found


async def find_dead(link: Link, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
    """Dead jobs, the latest failure first; entries that turn out to be no job's are removed."""
    if queue == "":  # which stands for all of them
        return []
    head = (queue or "").encode() + b"\0"
    after = None if before is None else head + TIME.pack(before[0]) + before[1]
    found: list[Job] = []
    while len(found) < limit:
        size = min(PAGE, limit - len(found))
        walk = _range(link.place.keys.deaths, head, head + _BEYOND, after, size, newest_first=True)
        (members,) = await link.ask(walk)
        left: list[bytes] = []
        for member, job in zip(members, await get(link, [member[-16:] for member in members]), strict=True):
            if job is not None and job.state is JobState.DEAD and _time_of(member) == job.finished_us:
                found.append(job)
            else:
                left.append(member)
        if left:
            await link.tend("forget_deaths", len(left), *left)
        if len(members) < size:
            break
        after = members[-1]
    return found


def _time_of(death: bytes) -> int:
    time: int = TIME.unpack_from(death, len(death) - 24)[0]
    return time


def _fits(job: Job, listing: JobQuery) -> bool:
    return (
        listing.queue in (None, job.queue)
        and listing.state in (None, job.state)
        and listing.task in (None, job.task)
    )


async def _pages(link: Link, listing: JobQuery) -> AsyncIterator[list[bytes]]:
    """Ids in the order of the listing, page by page: all that fit are among them."""
    size = PAGE if listing.task is not None else min(PAGE, listing.limit)
    if listing.state in FINISHED:
        after = listing.after
        while page := await finished_keys(
            link, listing.state, listing.queue, after, size, listing.newest_first
        ):
            yield page
            after = page[-1]
        return
    if listing.state is JobState.PENDING:
        heads = await _pending_heads(link, listing.queue)
        if heads is not None:
            after = listing.after
            while page := await _merged(
                link, link.place.keys.pending, heads, after, size, listing.newest_first
            ):
                yield page
                after = page[-1]
            return
    if listing.state is not None:
        counts = (await stats(link)).values()
        if sum(getattr(count, listing.state.value) for count in counts) <= SPARSE:
            keys = await _sparse_keys(link, listing)
            step = PAGE if listing.queue is not None else size
            for start in range(0, len(keys), step):
                yield keys[start : start + step]
            return
    async for page in _all_keys(link, listing, PAGE if listing.state is not None else size):
        yield page


async def _sparse_keys(link: Link, listing: JobQuery) -> list[bytes]:
    """The ids of the jobs in a state that few are in, sorted."""
    names = link.place.keys
    by_state = {
        JobState.PENDING: names.pending, JobState.SCHEDULED: names.due, JobState.RUNNING: names.leases,
    }  # fmt: skip
    assert listing.state is not None
    (members,) = await link.ask(("ZRANGE", by_state[listing.state], 0, -1))
    keys = sorted({member[-16:] for member in members}, reverse=listing.newest_first)
    after = listing.after
    if after is None:
        return keys
    return [key for key in keys if (key < after if listing.newest_first else key > after)]


async def _all_keys(link: Link, listing: JobQuery, size: int) -> AsyncIterator[list[bytes]]:
    """All ids, or all of the listing's queue."""
    queue = None if listing.queue is None else listing.queue.encode()
    after = (
        None if listing.after is None else listing.after + (b"" if listing.newest_first else b"\xff" * 201)
    )
    while True:
        walk = _range(link.place.keys.ids, b"", b"", after, size, listing.newest_first)
        (entries,) = await link.ask(walk)
        keys = [entry[:16] for entry in entries if queue is None or entry[16:] == queue]
        if keys:
            yield keys
        if len(entries) < size:
            return
        after = entries[-1]


async def finished_keys(
    link: Link,
    state: JobState,
    queue: str | None,
    after: bytes | None,
    limit: int,
    newest_first: bool = False,
) -> list[bytes]:
    """Ids of finished jobs in id order: each queue has its run of them; they are merged."""
    names = [queue] if queue is not None else [
        name for name, counts in (await stats(link)).items()
        if state is JobState.DONE or getattr(counts, state.value)
    ]  # fmt: skip
    heads = [b"%d%b\0" % (CODES[state], name.encode()) for name in names]
    return await _merged(link, link.place.keys.finished, heads, after, limit, newest_first)


async def _pending_heads(link: Link, queue: str | None) -> list[bytes] | None:
    """What the entries of each queue's priorities begin with, as far as there are any; None if too many."""
    names = [queue] if queue is not None else [
        name for name, counts in (await stats(link)).items() if counts.pending
    ]  # fmt: skip
    key = link.place.keys.pending
    heads: list[bytes] = []
    starts = [name.encode() + b"\0" for name in names]
    while starts:
        if len(heads) + len(starts) > RUNS:
            return None
        firsts = await link.ask(
            *(_range(key, start, _queue_of(start) + b"\1", None, 1, newest_first=False) for start in starts)
        )
        found = [first[0][:-16] for first in firsts if first]
        heads += found
        starts = [head + _BEYOND for head in found]
    return heads


def _queue_of(entry: bytes) -> bytes:
    return entry[: entry.index(b"\0")]


async def _merged(
    link: Link, key: bytes, heads: Sequence[bytes], after: bytes | None, limit: int, newest_first: bool
) -> list[bytes]:
    """Ids in id order, out of the runs of entries that consist of one of the heads and an id."""
    runs: list[list[bytes]] = []
    for start in range(0, len(heads), RUNS):
        commands = [
            _range(
                key, head, head + _BEYOND, None if after is None else head + after, limit, newest_first
            ) for head in heads[start : start + RUNS]
        ]  # fmt: skip
        runs += [[entry[-16:] for entry in entries] for entries in await link.ask(*commands)]
    # A job whose record was damaged may have two entries.
    ids = (id for id, _ in groupby(merge(*runs, reverse=newest_first)))
    return list(islice(ids, limit))


def _range(
    key: bytes, first: bytes, end: bytes, after: bytes | None, limit: int, newest_first: bool
) -> Command:
    """Members from ``first`` up to ``end``, which is not among them, and after the cursor; '' is no bound."""
    low = b"[" + first if first else b"-"
    high = b"(" + end if end else b"+"
    if newest_first:
        high = high if after is None else b"(" + after
        return ("ZREVRANGEBYLEX", key, high, low, "LIMIT", 0, limit)
    low = low if after is None else b"(" + after
    return ("ZRANGEBYLEX", key, low, high, "LIMIT", 0, limit)
