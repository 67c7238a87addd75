"""Looking at jobs: those that wait or run are known in memory, the finished ones are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice

from dayjob.engines.base import JobQuery
from dayjob.engines.order import fitting
from dayjob.engines.record import Record
from dayjob.engines.slatedb import values
from dayjob.engines.slatedb.keys import FINISHED_STATES
from dayjob.engines.slatedb.live import Live
from dayjob.engines.slatedb.store import Store
from dayjob.model.job import Job

_CHUNK = 500


async def get(store: Store, wanted: Sequence[bytes]) -> list[Job | None]:
    """The full records."""
    records = [store.live.jobs.get(key) for key in wanted]
    jobs = {job.key: job for job in await _jobs(store, [record for record in records if record is not None])}
    finished = await store.archive.find([key for key in wanted if key not in jobs])
    return [
        jobs[key] if key in jobs else finished[key].to_job() if key in finished else None for key in wanted
    ]


async def find(store: Store, listing: JobQuery) -> list[Job]:
    """Full records in id order."""
    found: list[list[Job]] = []
    if listing.limit > 0 and (
        listing.queue in (None, values.UNREADABLE) or listing.queue in store.ledger.stats
    ):
        if listing.state not in FINISHED_STATES:
            found.append(await _find_live(store, listing))
        for state in FINISHED_STATES:
            if listing.state in (None, state):
                kept = await store.archive.list(
                    state,
                    lambda one: _fits(one.record, listing) and listing.task in (None, _task(one)),
                    listing.after,
                    listing.limit,
                    listing.newest_first,
                    listing.queue,
                )
                found.append([one.to_job() for one in kept])
    merged = merge(*found, key=lambda job: job.key, reverse=listing.newest_first)
    return list(islice(merged, listing.limit))


async def find_dead(
    store: Store, queue: str | None, before: tuple[int, bytes] | None, limit: int
) -> list[Job]:
    """Full records, the latest failure first."""
    return [one.to_job() for one in await store.archive.latest_dead(queue, before, limit)]


async def _find_live(store: Store, listing: JobQuery) -> list[Job]:
    matching = map(store.live.jobs.__getitem__, _matching(store.live, listing))
    found: list[Job] = []
    chunk = _CHUNK if listing.task is not None else listing.limit
    while len(found) < listing.limit and (some := list(islice(matching, chunk))):
        jobs = await _jobs(store, some)
        found += [job for job in jobs if listing.task in (None, job.task)]
    return found[: listing.limit]


def _matching(live: Live, listing: JobQuery) -> Iterator[bytes]:
    """Those that fit, in id order."""
    queue, state = listing.queue, listing.state
    ordered = live.keys.after(listing.after, listing.newest_first)
    if queue is None and state is None:
        return ordered

    def fits(key: bytes) -> bool:
        record = live.jobs.get(key)
        return record is not None and _fits(record, listing)

    return fitting(ordered, fits, partial(live.pool, queue, state), listing.newest_first)


def _fits(record: Record, listing: JobQuery) -> bool:
    return listing.queue in (None, record.queue) and listing.state in (None, record.state)


def _task(found: values.Finished) -> str:
    try:
        return values.body_of(found.body).task
    except values.Corrupt:
        return ""


async def _jobs(store: Store, records: Sequence[Record]) -> list[Job]:
    """The public records of live jobs, in order."""
    jobs: list[Job] = []
    for start in range(0, len(records), _CHUNK):
        some = records[start : start + _CHUNK]
        await store.bodies.need([record.key for record in some])
        for record in some:
            try:
                head, body = values.job_parts(store.bodies[record.key])
                jobs.append(values.full_job(record, head, body))
            except values.Corrupt as error:
                head = values.substitute_head(record)
                jobs.append(values.full_job(record, head, b"", str(error)))
    return jobs
