"""Looking at jobs in id order, over whichever sorted set has the fewest entries to pass over.

Finished jobs are listed from a set of their own. Of the others, those in a state that few are in come from
that state's set; else all ids are walked. Records are read after their ids and checked again, so each is
shown as it was at one moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from dayjob.engines.base import Listing
from dayjob.engines.redis import record
from dayjob.engines.redis.link import Command, Link
from dayjob.engines.redis.record import CODES
from dayjob.job import FINISHED, Job, JobState, QueueStats

SPARSE = 10_000
"""Up to this many jobs in a state, listing them sorts the state's own set; above, it walks the ids."""

PAGE = 1000
"""How many ids or records are read at once."""

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
        head = ("", names.news, names.ends, 0)
        await link.run("mend", (*names.fixed, names.answer("mend", 0)), (*head, b"".join(unreadable)))
        return await get(link, keys, mended=True)
    return found


async def ahead(link: Link, key: bytes, limit: int) -> int:
    """How many jobs go before a pending one; the server counts them without walking over them."""
    (job,) = await get(link, [key])
    if job is None or job.state is not JobState.PENDING:
        return 0
    head = job.queue.encode() + b"\0"
    place = head + job.priority.to_bytes(4) + key
    count: int = (await link.ask(("ZLEXCOUNT", link.place.keys.pending, b"[" + head, b"(" + place)))[0]
    return min(count, limit)


async def find(link: Link, listing: Listing) -> list[Job]:
    found: list[Job] = []
    if listing.limit > 0:
        async for page in _pages(link, listing):
            found += [job for job in await get(link, page) if job is not None and _fits(job, listing)]
            if len(found) >= listing.limit:
                return found[: listing.limit]
    return found


def _fits(job: Job, listing: Listing) -> bool:
    return (
        listing.queue in (None, job.queue)
        and listing.state in (None, job.state)
        and listing.task in (None, job.task)
    )


async def _pages(link: Link, listing: Listing) -> AsyncIterator[list[bytes]]:
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
    if listing.state is not None:
        counts = (await stats(link)).values()
        if sum(getattr(count, listing.state.value) for count in counts) <= SPARSE:
            keys = await _sparse_keys(link, listing)
            for start in range(0, len(keys), size):
                yield keys[start : start + size]
            return
    async for page in _all_keys(link, listing, PAGE if listing.state is not None else size):
        yield page


async def _sparse_keys(link: Link, listing: Listing) -> list[bytes]:
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


async def _all_keys(link: Link, listing: Listing, size: int) -> AsyncIterator[list[bytes]]:
    """All ids, or all of the listing's queue."""
    queue = None if listing.queue is None else listing.queue.encode()
    after = (
        None if listing.after is None else listing.after + (b"" if listing.newest_first else b"\xff" * 201)
    )
    while True:
        entries = await _range(link, link.place.keys.ids, b"", b"", after, size, listing.newest_first)
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
    runs: list[list[bytes]] = []
    for name in names:
        head = b"%d%b\0" % (CODES[state], name.encode())
        end = head[:-1] + b"\1"
        entries = await _range(
            link, link.place.keys.finished, head, end, None if after is None else head + after, limit,
            newest_first,
        )  # fmt: skip
        runs.append([entry[-16:] for entry in entries])
    return list(islice(merge(*runs, reverse=newest_first), limit))


async def _range(
    link: Link, key: bytes, first: bytes, end: bytes, after: bytes | None, limit: int, newest_first: bool
) -> list[bytes]:
    """Members from ``first`` up to ``end``, which is not among them, and after the cursor; '' is no bound."""
    low = b"[" + first if first else b"-"
    high = b"(" + end if end else b"+"
    command: tuple[Any, ...]
    if newest_first:
        high = high if after is None else b"(" + after
        command = ("ZREVRANGEBYLEX", key, high, low, "LIMIT", 0, limit)
    else:
        low = low if after is None else b"(" + after
        command = ("ZRANGEBYLEX", key, low, high, "LIMIT", 0, limit)
    members: list[bytes] = (await link.ask(command))[0]
    return members
