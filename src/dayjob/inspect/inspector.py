"""The read model: everything that the command line, the dashboard and the metrics show comes from here.

Answers are plain values with stable fields, ready for JSON. Nothing here changes a job, and no answer costs
more with a million jobs than with a thousand: a search examines so many records and says where to go on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec
from msgspec import Struct, to_builtins

from dayjob.broker import Broker
from dayjob.broker.history import MINUTE, Sample
from dayjob.errors import DayjobError
from dayjob.inspect.redaction import Redaction
from dayjob.model.durations import SECOND, to_datetime
from dayjob.model.explanation import Explanation, WorkerInfo
from dayjob.model.job import FINISHED, Job, JobState, QueueStats, known_key
from dayjob.model.recurring import Schedule
from dayjob.runtime.clock import SYSTEM

EXAMINED = 10_000
"""How many records one page of a search looks at."""

EXAMINED_BYTES = 32 * 2**20
"""How many bytes of payloads, about: few records with large payloads cost as much as many small ones."""

GROUPED = 5_000
"""How many of the latest dead jobs are grouped by their error."""

RUNNING_SHOWN = 1_000

_FIRST_CHUNK, _CHUNK = 100, 1000
"""Records that are asked for at once: few at first, for they may be large."""

_INDEXED = frozenset({*FINISHED, JobState.RUNNING})
"""The states whose jobs every engine finds without walking past others."""


class QueueView(Struct, frozen=True):
    """One queue at a glance. Rates are jobs a second over the last minutes."""

    name: str
    paused: bool
    stats: QueueStats
    done_per_second: float
    waiting_seconds: float | None
    """How long the oldest pending job has been due."""


class Overview(Struct, frozen=True):
    at_us: int
    queues: list[QueueView]
    total: QueueStats
    done_per_second: float
    workers: int
    slots: int
    running: int
    schedules: int
    round_trip_seconds: float


class Page(Struct, frozen=True):
    """Some of the jobs that match. ``after`` is the cursor for more; ``found_all`` that there are none."""

    jobs: list[Job]
    after: str | None
    examined: int

    @property
    def found_all(self) -> bool:
        return self.after is None


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs to list; ``text`` is looked for in id, task, tenant, dedup key, error and headers."""

    queue: str | None = None
    state: JobState | None = None
    task: str | None = None
    tenant: str | None = None
    text: str | None = None

    def matches(self, job: Job, redaction: Redaction) -> bool:
        """Whether the job is wanted; what is hidden can't be searched for either."""
        return (
            self.queue in (None, job.queue)
            and self.state in (None, job.state)
            and self.task in (None, job.task)
            and self.tenant in (None, job.tenant)
            and (not self.text or _mentions(job, redaction.headers(job.headers), self.text.casefold()))
        )


class DeadGroup(Struct, frozen=True):
    """Dead jobs that failed alike."""

    error: str
    task: str
    count: int
    queues: list[str]
    latest: Job
    ids: list[str]


class DeadGroups(Struct, frozen=True):
    groups: list[DeadGroup]
    examined: int
    total: int


class WorkerView(Struct, frozen=True):
    info: WorkerInfo
    jobs: list[Job]


class Point(Struct, frozen=True):
    """A minute of a chart: jobs done in it, and how things were at its end."""

    at_us: int
    done: int
    pending: int
    scheduled: int
    running: int
    dead: int
    known: bool = True
    """False for minutes before the first sample, when nobody counted."""
    wait_seconds: float | None = None
    """How long the first pending job had been due."""


class Health(Struct, frozen=True):
    ok: bool
    problem: str | None = None
    round_trip_seconds: float | None = None


class Inspector:
    """Looks into one broker's storage."""

    def __init__(
        self, broker: Broker, redaction: Redaction | None = None, *, history_fresh: float = 0.0
    ) -> None:
        """The throughput's samples, which change once a minute, are read again after ``history_fresh``."""
        self.broker = broker
        self._history_fresh = history_fresh
        self.redaction = redaction or Redaction()
        self._read: tuple[int, float, int, list[Sample]] | None = None
        self._first_due: tuple[float, dict[str, int]] = (-inf, {})

    # All of it.

    async def overview(self, *, patience: float = inf) -> Overview:
        """All queues; after ``patience`` seconds it asks no more how long the oldest job of one waits."""
        begun = SYSTEM.elapsed()
        stats = await self.broker.all_stats()
        round_trip = SYSTEM.elapsed() - begun
        paused = await self.broker.paused()
        workers = await self.broker.workers()
        now, samples = await self._history(1)
        first_due = await self.broker.first_due(stats, patience - (SYSTEM.elapsed() - begun))
        self._first_due = (SYSTEM.elapsed(), first_due)
        waits = {name: max(now - due, 0) / SECOND for name, due in first_due.items()}
        queues = [
            QueueView(name, name in paused, each, _rate(samples, name, each, now), waits.get(name))
            for name, each in stats.items()
        ]
        return Overview(
            now,
            queues,
            total(stats.values()),
            sum(view.done_per_second for view in queues),
            len(workers),
            sum(worker.slots for worker in workers),
            sum(worker.running for worker in workers),
            len(await self.broker.schedules()),
            round_trip,
        )

    async def chart(
        self, queue: str | None = None, minutes: int = 60, *, patience: float = inf
    ) -> list[Point]:
        """The throughput minute by minute, of one queue or of all, up to now."""
        return (await self.charts([queue], minutes, patience=patience))[queue]

    async def charts(
        self, queues: Sequence[str | None], minutes: int = 60, *, patience: float = inf
    ) -> dict[str | None, list[Point]]:
        """The charts of several queues, None for all of them together, from one look."""
        now, samples = await self._history(minutes // 60 + 1)
        stats = await self.broker.all_stats()
        counters = {name: _counters(each) for name, each in stats.items()}
        seen, first_due = self._first_due  # by the overview, which goes before a chart
        if SYSTEM.elapsed() - seen > min(self._history_fresh, 1.0):
            first_due = await self.broker.first_due(stats, patience)
        samples = [*samples, Sample(now, counters, first_due)]
        first = now - now % MINUTE - (minutes - 1) * MINUTE
        ends = range(first + MINUTE, first + (minutes + 1) * MINUTE, MINUTE)
        chosen = [_latest(samples, min(instant, now)) for instant in (first, *ends)]
        charts = {}
        for queue in dict.fromkeys(queues):
            counts = {id(sample): _stats_of(sample, queue) for sample in chosen}
            points = []
            for end, before, after in zip(ends, chosen, chosen[1:], strict=False):
                at_end = counts[id(after)]
                done = max(at_end.done - counts[id(before)].done, 0)
                counted = (at_end.pending, at_end.scheduled, at_end.running, at_end.dead)
                known = end >= samples[0].at_us
                waited = after.wait_seconds(queue, min(end, now)) if known else None
                points.append(Point(end, done, *counted, known, waited))
            charts[queue] = points
        return charts

    async def _history(self, hours: int) -> tuple[int, list[Sample]]:
        elapsed = SYSTEM.elapsed()
        if self._read is None or self._read[0] < hours or elapsed - self._read[1] >= self._history_fresh:
            self._read = (hours, elapsed, *await self.broker.history(hours))
        _, read, now, samples = self._read
        return now + round((elapsed - read) * SECOND) if elapsed > read else now, samples

    async def health(self) -> Health:
        """Whether the storage answers, and how fast."""
        begun = SYSTEM.elapsed()
        try:
            await self.broker.paused()
        except DayjobError as error:
            return Health(False, str(error))
        return Health(True, None, SYSTEM.elapsed() - begun)

    # Jobs.

    async def page(
        self, filter: Filter, after: str | None = None, limit: int = 50, *, newest_first: bool = True,
        patience: float = inf,
    ) -> Page:  # fmt: skip
        """Up to ``limit`` jobs that match, by id.

        It examines up to ``EXAMINED`` records, and asks for no more of them after ``patience`` seconds.
        """
        deadline = SYSTEM.elapsed() + patience
        if filter.text and (key := known_key(filter.text.strip())) is not None and after is None:
            job = await self.broker.get(filter.text.strip())
            return Page([job] if job is not None and job.key == key else [], None, 1)
        indexed = filter.state in _INDEXED
        found: list[Job] = []
        examined = weight = 0
        chunk = min(limit + 1, _FIRST_CHUNK)
        while examined < EXAMINED and weight < EXAMINED_BYTES:
            asked = min(chunk, EXAMINED - examined)
            some = await self.broker.jobs(
                filter.queue if indexed else None,
                filter.state if indexed else None,
                after=after,
                limit=asked,
                newest_first=newest_first,
            )
            for job in some:
                examined += 1
                weight += _weight(job)
                if filter.matches(job, self.redaction):
                    if len(found) == limit:
                        return Page(found, after, examined)
                    found.append(job)
                after = job.id
            if not some:
                return Page(found, None, examined)
            if len(some) == asked and SYSTEM.elapsed() >= deadline:
                break  # else it has come to the end, and the next look makes sure of that
            chunk = _next_chunk(examined, weight)
        return Page(found, after, examined)

    async def job(self, id: str) -> tuple[Job, Explanation] | None:
        """One job with all its fields, and why it is where it is."""
        job = await self.broker.get(id)
        return None if job is None else (job, await self.broker.explain(id))

    async def dead_groups(self, queue: str | None = None, *, patience: float = inf) -> DeadGroups:
        """The latest dead jobs by what they failed of, the most frequent first.

        They are the latest ``GROUPED``, or those that were found within ``patience`` seconds.
        """
        latest = await self._latest_dead(queue, SYSTEM.elapsed() + patience)
        stats = await self.broker.all_stats()
        groups: dict[tuple[str, str], list[Job]] = {}
        for job in latest:
            groups.setdefault((job.task, alike(job.last_error)), []).append(job)
        made = [
            DeadGroup(
                error, task, len(jobs), sorted({job.queue for job in jobs}), jobs[0], [job.id for job in jobs]
            )
            for (task, error), jobs in groups.items()
        ]
        made.sort(key=lambda group: -group.count)
        dead = sum(each.dead for name, each in stats.items() if queue in (None, name))
        return DeadGroups(made, len(latest), dead)

    async def _latest_dead(self, queue: str | None, deadline: float) -> list[Job]:
        latest: list[Job] = []
        weight, chunk = 0, _FIRST_CHUNK
        while len(latest) < GROUPED and weight < EXAMINED_BYTES:
            if latest and SYSTEM.elapsed() >= deadline:
                break
            before = latest[-1] if latest else None
            some = await self.broker.latest_dead(queue, before, min(chunk, GROUPED - len(latest)))
            if not some:
                break
            latest += some
            weight += sum(map(_weight, some))
            chunk = _next_chunk(len(latest), weight)
        return latest

    async def dead_page(self, queue: str | None = None, after: str | None = None, limit: int = 50) -> Page:
        """Dead jobs, the latest failure first; the cursor holds although its job may be gone by then."""
        found = await self.broker.latest_dead(queue, _place(after), limit + 1)
        more = found[limit - 1] if len(found) > limit else None
        cursor = None if more is None else f"{more.finished_us or 0}.{more.id}"
        return Page(found[:limit], cursor, len(found))

    # The fleet.

    async def workers(self) -> list[WorkerView]:
        """The live workers, with what they run."""
        running = await self.broker.jobs(state=JobState.RUNNING, limit=RUNNING_SHOWN)
        return [
            WorkerView(info, [job for job in running if job.worker == info.id])
            for info in await self.broker.workers()
        ]

    async def schedules(self) -> list[Schedule]:
        return await self.broker.schedules()

    # As JSON.

    def job_fields(self, job: Job) -> dict[str, Any]:
        """A job for JSON: times as ISO texts, payload and result decoded and redacted."""
        return {
            "id": job.id,
            "queue": job.queue,
            "task": job.task,
            "state": job.state.value,
            "priority": job.priority,
            "attempts": job.attempts,
            "max_attempts": job.max_attempts,
            "epoch": job.epoch,
            "tenant": job.tenant,
            "worker": job.worker,
            "enqueued_at": _iso(job.enqueued_us),
            "run_at": _iso(job.run_us),
            "claimed_at": _iso(job.claimed_us),
            "lease_expires_at": _iso(job.lease_us),
            "finished_at": _iso(job.finished_us),
            "expires_at": _iso(job.expires_us),
            "cancel_requested": job.cancel_requested,
            "dedup_key": job.dedup_key,
            "progress": None
            if job.progress is None
            else {"fraction": job.progress[0], "message": job.progress[1]},
            "last_error": job.last_error,
            "errors": [
                {
                    "attempt": failure.attempt,
                    "at": _iso(failure.at_us),
                    "worker": failure.worker,
                    "message": failure.message,
                }
                for failure in job.errors
            ],
            "headers": self.redaction.headers(job.headers),
            "payload": self.content(job.payload),
            "result": None if job.result is None else self.content(job.result),
        }

    def content(self, data: bytes) -> Any:
        """A payload or a result: decoded JSON, redacted; or what else it is."""
        try:
            return self.redaction.values(msgspec.json.decode(data))
        except (msgspec.MsgspecError, RecursionError):
            pass
        try:
            return {"text": data.decode()}
        except UnicodeDecodeError:
            return {"bytes": len(data), "hex": data[:256].hex()}


def total(stats: Iterable[QueueStats]) -> QueueStats:
    """The sum over queues."""
    summed = Counter[str]()
    for each in stats:
        summed.update(to_builtins(each))
    return QueueStats(**summed)


_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27,}|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\"", re.I)


def alike(error: str | None) -> str:
    """What two errors have in common that differ in numbers, ids and quoted values only."""
    lines = (error or "no reason given").strip().splitlines() or [""]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return _VARYING.sub("…", line)[:300]


def _mentions(job: Job, headers: Mapping[str, str], text: str) -> bool:
    texts = [job.id, job.task, job.tenant or "", job.dedup_key or "", job.last_error or ""]
    texts += [f"{name}: {value}" for name, value in headers.items()]
    return any(text in each.casefold() for each in texts)


def _weight(job: Job) -> int:
    return len(job.payload) + len(job.result or b"")


def _next_chunk(examined: int, weight: int) -> int:
    """How many records to ask for next, so that a chunk of records like those so far stays small."""
    return max(min(_CHUNK, EXAMINED_BYTES // 8 * examined // max(weight, 1)), 1)


def _place(cursor: str | None) -> Job | None:
    """A stand-in for the last dead job seen: where it was in the order is all that counts."""
    time, _, id = (cursor or "").partition(".")
    key = known_key(id)
    if key is None or not (time.isascii() and time.isdigit()):
        return None
    return Job(
        key, "", "", b"", {}, None, 0, JobState.DEAD, 0, 0, 0, 0, 0, finished_us=min(int(time[:19]), 2**62)
    )


def _rate(samples: Sequence[Sample], queue: str, now_stats: QueueStats, now: int) -> float:
    """Successes a second since a sample of some minutes ago."""
    earlier = [sample for sample in samples if now - sample.at_us <= 5 * MINUTE] or list(samples[-1:])
    if not earlier or now <= earlier[0].at_us:
        return 0.0
    since = earlier[0] if len(earlier) < 2 else earlier[-2]
    seconds = max(now - since.at_us, SECOND) / SECOND
    return max(now_stats.done - since.stats(queue).done, 0) / seconds


def _latest(samples: Sequence[Sample], instant: int) -> Sample:
    """The last sample until an instant, or the first of all."""
    number = bisect_right(samples, instant, key=lambda sample: sample.at_us)
    return samples[max(number - 1, 0)]


def _stats_of(sample: Sample, queue: str | None) -> QueueStats:
    if queue is not None:
        return sample.stats(queue)
    return QueueStats(*map(sum, zip(*sample.queues.values(), strict=True))) if sample.queues else QueueStats()


def _counters(each: QueueStats) -> tuple[int, int, int, int, int, int]:
    return (each.pending, each.scheduled, each.running, each.done, each.dead, each.cancelled)


def _iso(micros: int | None) -> str | None:
    return None if micros is None else to_datetime(micros).isoformat()
