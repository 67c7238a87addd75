"""Listings of jobs: active jobs come from memory, finished ones from the archive."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice

from dayjob.engines.active_jobs import ActiveJobs
from dayjob.engines.base import JobQuery
from dayjob.engines.record import Record
from dayjob.engines.slatedb import values
from dayjob.engines.slatedb.archive import Archive
from dayjob.engines.slatedb.keys import FINISHED_STATES
from dayjob.engines.slatedb.payload_cache import PayloadCache
from dayjob.engines.slatedb.values import Finished
from dayjob.engines.slatedb.write_batch import WriteBatch
from dayjob.model.job import Job

_CHUNK = 500


class JobListings:
    """Finds full records."""

    def __init__(
        self, active: ActiveJobs, payloads: PayloadCache, archive: Archive, write_batch: WriteBatch
    ) -> None:
        self._active = active
        self._payloads = payloads
        self._archive = archive
        self._write_batch = write_batch

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        active = [record for key in keys if (record := self._active.jobs.get(key)) is not None]
        jobs = {job.key: job for job in await self._jobs(active)}
        finished = await self._archive.find([key for key in keys if key not in jobs])
        return [
            jobs[key] if key in jobs else finished[key].to_job() if key in finished else None for key in keys
        ]

    async def find(self, query: JobQuery) -> list[Job]:
        queue = query.queue
        if query.limit <= 0 or not (queue in (None, values.UNREADABLE) or queue in self._write_batch.stats):
            return []
        found: list[list[Job]] = []
        if query.state not in FINISHED_STATES:
            found.append(await self._find_active(query))

        def matches(one: Finished) -> bool:
            return queue in (None, one.record.queue) and query.task in (None, one.task)

        for state in FINISHED_STATES:
            if query.state in (None, state):
                finished = await self._archive.find_in(
                    state, matches, query.after, query.limit, query.newest_first, queue
                )
                found.append([one.to_job() for one in finished])
        merged = merge(*found, key=lambda job: job.key, reverse=query.newest_first)
        return list(islice(merged, query.limit))

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        return [one.to_job() for one in await self._archive.latest_dead(queue, before, limit)]

    async def _find_active(self, query: JobQuery) -> list[Job]:
        matching = self._active.find(query)
        found: list[Job] = []
        chunk = _CHUNK if query.task is not None else query.limit
        while len(found) < query.limit and (some := list(islice(matching, chunk))):
            found += [job for job in await self._jobs(some) if query.task in (None, job.task)]
        return found[: query.limit]

    async def _jobs(self, records: Sequence[Record]) -> list[Job]:
        """Return the public records of active jobs, in order."""
        jobs: list[Job] = []
        for start in range(0, len(records), _CHUNK):
            some = records[start : start + _CHUNK]
            await self._payloads.need([record.key for record in some])
            for record in some:
                try:
                    head, body = values.job_parts(self._payloads[record.key])
                    jobs.append(values.full_job(record, head, body))
                except values.Corrupt as error:
                    head = values.substitute_head(record)
                    jobs.append(values.full_job(record, head, b"", str(error)))
        return jobs
