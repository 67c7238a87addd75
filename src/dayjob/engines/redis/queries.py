"""Reads: jobs in id order, dead jobs by time, counters, positions and documents.

A listing uses the sorted set in which it skips the fewest entries. Finished and pending jobs have sets in
which each queue, or each priority of it, is a run in id order. A rare state is listed from its own set, which
is sorted here. Other listings walk all ids. Records are read after their ids and checked again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from heapq import merge
from itertools import groupby, islice
from struct import error as LayoutError

from dayjob.engines.base import LIMITS, Death, Document, Engine, JobQuery
from dayjob.engines.redis import record
from dayjob.engines.redis.client import Client, Command
from dayjob.engines.redis.keys import Keys
from dayjob.engines.redis.record import STATE_CODES, TIME
from dayjob.model.job import FINISHED, Job, JobState, QueueStats
from dayjob.model.limits import LimitInfo, decode_settings, limit_name

SPARSE = 50_000
"""The most jobs in a state for which a listing sorts the state's own set; above, it walks all ids."""

RUNS = 100
"""The most runs that are read at once. Pending jobs in more runs are not listed by runs."""

PAGE = 1000
"""The most ids or records that are read at once."""

_TRIES = 3
"""How often jobs are read that are written meanwhile, or whose records are damaged."""

_BEYOND = b"\xff" * 25
"""Above every time and id."""

_AFTER_IDS = record.LAST_ID + b"\0"
"""Above every id, and below the turns of fair queues."""

_COUNTED = tuple(JobState(name) for name in QueueStats.__struct_fields__)


class Queries(Engine):
    """The verbs of the engine that read."""

    _keys: Keys

    @property
    @abstractmethod
    def _client(self) -> Client: ...

    @abstractmethod
    def _now(self) -> int | None:
        """Return the time of an injected clock, or None for that of the server."""

    @abstractmethod
    async def _listen(self, *, for_claims: bool = False) -> None:
        """Start to listen, before a read after which the caller may wait for a change."""

    async def stats(self) -> dict[str, QueueStats]:
        await self._listen()
        return await self._stats()

    async def _stats(self) -> dict[str, QueueStats]:
        keys = self._keys
        names, flat = await self._client.execute(("SMEMBERS", keys.queues), ("HGETALL", keys.counts))
        counts = dict(zip(flat[::2], flat[1::2], strict=True))

        def count(queue: bytes, state: JobState) -> int:
            with suppress(ValueError):  # A damaged counter is zero.
                return int(counts.get(b"%d%b" % (STATE_CODES[state], queue), 0))
            return 0

        found = {_text(name): QueueStats(*(count(name, state) for state in _COUNTED)) for name in names}
        return dict(sorted(found.items()))

    async def pending_queues(self) -> list[str]:
        """The names of other queues are not read."""
        await self._listen(for_claims=True)
        found: list[bytes] = []
        while True:
            page = await self._client.run_idempotent("pending_queues", found[-1] if found else b"", PAGE)
            found += page
            if len(page) < PAGE:
                return [_text(name) for name in found]

    async def position(self, key: bytes, limit: int) -> int:
        """The server counts a range without walking it."""
        (job,) = await self._jobs([key])
        if job is None or job.state not in (JobState.PENDING, JobState.LIMITED):
            return 0
        names = self._keys
        index, head = names.pending, job.queue.encode() + b"\0"
        if job.limited_by is not None:
            index, head = names.lines, job.limited_by.encode() + b"\0" + head
        count: Command = ("ZLEXCOUNT", index, b"[" + head, b"(" + head + record.place(job))
        (found,) = await self._client.execute(count)
        return min(int(found), limit)

    async def limits(self) -> list[LimitInfo]:
        """A limit has the buckets that have no limit of their own."""
        names = self._keys
        _, stored = await self._documents(LIMITS)
        own = {document.name for document in stored}
        # The lines of the bucket itself, and those of its keys: ';' follows ':'.
        ranges = [
            (b"[" + document.name.encode() + first, b"(" + document.name.encode() + end)
            for document in stored
            for first, end in ((b"\0", b"\1"), (b":", b";"))
        ]
        flat, *counts = await self._client.execute(
            ("HGETALL", names.buckets), *[("ZLEXCOUNT", names.lines, *pair) for pair in ranges]
        )
        running: Counter[str] = Counter()
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            bucket = _text(name)
            running[bucket if bucket in own else limit_name(bucket)] += int.from_bytes(value[:8])
        limited: Counter[str] = Counter()
        for document, exact, keyed in zip(stored, counts[::2], counts[1::2], strict=True):
            name = document.name
            limited[name] += exact
            if ":" in name:
                limited[limit_name(name)] -= exact
            else:
                limited[name] += keyed
        return [
            LimitInfo(each.name, decode_settings(each.value), running[each.name], limited[each.name])
            for each in stored
        ]

    async def bucket_due(self, name: str) -> int | None:
        (due,) = await self._client.execute(("ZSCORE", self._keys.bucket_dues, name))
        return None if due is None else int(float(due))

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        (values,) = await self._client.execute(("HMGET", self._keys.kv, *keys))
        found: list[bytes | None] = values
        return found

    async def paused(self) -> set[str]:
        (names,) = await self._client.execute(("SMEMBERS", self._keys.paused))
        return set(map(_text, names))

    async def documents(self, kind: str) -> tuple[int, list[Document]]:
        await self._listen()
        time, found = await self._documents(kind)
        now = self._now()
        return time if now is None else now, found

    async def _documents(self, kind: str) -> tuple[int, list[Document]]:
        """Return the server's time, no earlier than any of their writes, and the documents of the kind.

        A document is one member: its kind, NUL, its name, NUL, the time of its write (8 bytes, big endian),
        and its value. Neither kind nor name has a NUL, so a kind is one range, in the byte order of the
        names. Damaged members are left out, so that they stop no duty.
        """
        prefix = kind.encode()
        members, (seconds, micros) = await self._client.execute(
            ("ZRANGEBYLEX", self._keys.documents, b"[%b\0" % prefix, b"(%b\1" % prefix), ("TIME",)
        )
        found: list[Document] = []
        for member in members:
            name, _, rest = member[len(prefix) + 1 :].partition(b"\0")
            with suppress(UnicodeDecodeError, LayoutError):
                found.append(Document(name.decode(), rest[TIME.size :], TIME.unpack_from(rest)[0]))
        return int(seconds) * 1_000_000 + int(micros), found

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        await self._listen()
        return await self._jobs(keys)

    async def find(self, query: JobQuery) -> list[Job]:
        found: list[Job] = []
        if query.limit > 0:
            async for page in self._pages(query):
                found += [job for job in await self._jobs(page) if job is not None and _matches(job, query)]
                if len(found) >= query.limit:
                    return found[: query.limit]
        return found

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]:
        """Removes entries that belong to no dead job."""
        if queue == "":  # It stands for all queues.
            return []
        head = (queue or "").encode() + b"\0"
        after = None if before is None else head + TIME.pack(before[0]) + before[1]
        found: list[Job] = []
        while len(found) < limit:
            size = min(PAGE, limit - len(found))
            walk = _range(self._keys.dead_index, head, head + _BEYOND, after, size, newest_first=True)
            (members,) = await self._client.execute(walk)
            stale: list[bytes] = []
            jobs = await self._jobs([member[-16:] for member in members])
            for member, job in zip(members, jobs, strict=True):
                time = TIME.unpack(member[-24:-16])[0]
                if job is not None and job.state is JobState.DEAD and job.finished_us == time:
                    found.append(job)
                else:
                    stale.append(member)
            if stale:
                await self._client.run_idempotent("prune_dead_index", len(stale), *stale)
            if len(members) < size:
                break
            after = members[-1]
        return found

    async def _jobs(self, keys: Sequence[bytes], *, tries: int = _TRIES) -> list[Job | None]:
        """Return the full records. Those whose head can't be read are repaired first.

        The three reads of a page are no commit. They are repeated if a job was written in between.
        """
        names = self._keys
        found: list[Job | None] = []
        unreadable: list[bytes] = []
        torn = False
        for start in range(0, len(keys), PAGE):
            page = keys[start : start + PAGE]
            reads: list[Command] = [
                ("HMGET", name, *page) for name in (names.payloads, names.results, names.jobs)
            ]
            for key, payload, result, blob in zip(page, *await self._client.execute(*reads), strict=True):
                try:
                    found.append(None if blob is None else record.full_job(key, blob, payload or b"", result))
                except record.Unreadable:
                    found.append(None)
                    unreadable.append(key)
                torn = torn or (blob is not None and record.is_torn(blob, payload or b"", result))
        if tries > 1 and (unreadable or torn):
            if unreadable:
                await self._client.run_idempotent("repair", b"".join(unreadable))
            return await self._jobs(keys, tries=tries - 1)
        return found

    async def _pages(self, query: JobQuery) -> AsyncIterator[list[bytes]]:
        """Yield ids in the order of the query, page by page, among them all that match."""
        size = PAGE if query.task is not None else min(PAGE, query.limit)
        index, prefixes = self._keys.pending, None
        if query.state in FINISHED:
            index = self._keys.finished
            prefixes = await self._finished_prefixes(query.state, query.queue)
        elif query.state is JobState.PENDING:
            prefixes = await self._pending_prefixes(query.queue)
        if prefixes is not None:
            after = query.after
            while page := await self._merged(index, prefixes, after, size, query.newest_first):
                yield page
                after = page[-1]
            return
        if query.state is not None:
            counts = (await self._stats()).values()
            if sum(getattr(count, query.state.value) for count in counts) <= SPARSE:
                keys = await self._sparse_keys(query)
                step = PAGE if query.queue is not None else size
                for start in range(0, len(keys), step):
                    yield keys[start : start + step]
                return
        async for page in self._all_keys(query, PAGE if query.state is not None else size):
            yield page

    async def _sparse_keys(self, query: JobQuery) -> list[bytes]:
        """Return the ids of the jobs in a rare state, sorted."""
        names = self._keys
        by_state = {
            JobState.PENDING: names.pending, JobState.SCHEDULED: names.due, JobState.RUNNING: names.leases,
            JobState.LIMITED: names.lines,
        }  # fmt: skip
        assert query.state is not None
        (members,) = await self._client.execute(("ZRANGE", by_state[query.state], 0, -1))
        keys = sorted({member[-16:] for member in members}, reverse=query.newest_first)
        after = query.after
        if after is None:
            return keys
        return [key for key in keys if (key < after if query.newest_first else key > after)]

    async def _all_keys(self, query: JobQuery, size: int) -> AsyncIterator[list[bytes]]:
        queue = None if query.queue is None else query.queue.encode()
        after = None if query.after is None else query.after + (b"" if query.newest_first else b"\xff" * 201)
        while True:
            walk = _range(self._keys.ids, b"", b"", after, size, query.newest_first)
            (entries,) = await self._client.execute(walk)
            keys = [entry[:16] for entry in entries if queue is None or entry[16:] == queue]
            if keys:
                yield keys
            if len(entries) < size:
                return
            after = entries[-1]

    async def _finished_keys(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int
    ) -> list[bytes]:
        """Return ids of finished jobs in id order, merged from the runs of the queues."""
        prefixes = await self._finished_prefixes(state, queue)
        return await self._merged(self._keys.finished, prefixes, after, limit, newest_first=False)

    async def _queues(self, state: JobState, queue: str | None) -> list[bytes]:
        """Return the queue, or all queues that may have jobs in the state."""
        if queue is not None:
            return [queue.encode()]
        counts = (await self._stats()).items()
        return [name.encode() for name, of in counts if state is JobState.DONE or getattr(of, state.value)]

    async def _finished_prefixes(self, state: JobState, queue: str | None) -> list[bytes]:
        return [b"%d%b\0" % (STATE_CODES[state], name) for name in await self._queues(state, queue)]

    async def _pending_prefixes(self, queue: str | None) -> list[bytes] | None:
        """Return the prefix of each run of pending entries, by queue and priority; None if too many."""
        key = self._keys.pending
        prefixes: list[bytes] = []
        starts = [name + b"\0" for name in await self._queues(JobState.PENDING, queue)]
        while starts:
            if len(prefixes) + len(starts) > RUNS:
                return None
            firsts = await self._client.execute(
                *(
                    _range(key, start, start.partition(b"\0")[0] + b"\1", None, 1, newest_first=False)
                    for start in starts
                )
            )
            found = [first[0][:-16] for first in firsts if first]
            prefixes += found
            starts = [prefix + _AFTER_IDS for prefix in found]
        return prefixes

    async def _merged(
        self, key: bytes, prefixes: Sequence[bytes], after: bytes | None, limit: int, newest_first: bool
    ) -> list[bytes]:
        """Return ids in id order, merged from the runs of entries that consist of a prefix and an id."""
        runs: list[list[bytes]] = []
        for start in range(0, len(prefixes), RUNS):
            commands = [
                _range(
                    key, prefix, prefix + _AFTER_IDS, None if after is None else prefix + after, limit,
                    newest_first,
                ) for prefix in prefixes[start : start + RUNS]
            ]  # fmt: skip
            runs += [[entry[-16:] for entry in entries] for entries in await self._client.execute(*commands)]
        # A repaired job may have two entries.
        ids = (id for id, _ in groupby(merge(*runs, reverse=newest_first)))
        return list(islice(ids, limit))


def _text(name: bytes) -> str:
    """Return a stored name, also if it is damaged."""
    return name.decode("utf-8", "replace")


def _matches(job: Job, query: JobQuery) -> bool:
    return (
        query.queue in (None, job.queue)
        and query.state in (None, job.state)
        and query.task in (None, job.task)
    )


def _range(
    key: bytes, first: bytes, end: bytes, after: bytes | None, limit: int, newest_first: bool
) -> Command:
    """Return the command for members from ``first`` to before ``end``, after the cursor; '' is no bound."""
    low = b"[" + first if first else b"-"
    high = b"(" + end if end else b"+"
    if newest_first:
        high = high if after is None else b"(" + after
        return ("ZREVRANGEBYLEX", key, high, low, "LIMIT", 0, limit)
    low = low if after is None else b"(" + after
    return ("ZRANGEBYLEX", key, low, high, "LIMIT", 0, limit)
