"""The duties: schedules on time and exactly once, jobs of dead workers, and the cost of the duties."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median

from benchmarks.processes import run_child
from benchmarks.results import Result, millis, number, paired_ratio, percentile, rate
from benchmarks.run import Run, measure
from dayjob import JobState, Recurring
from dayjob.model.durations import SECOND
from tests.faults.fleet.fired_schedules import fired, lateness, not_exactly_once
from tests.faults.fleet.worker_fleet import WorkerFleet
from tests.support.processes import spawning, until

_CLAIM_LATENCY, _DRAINS = "benchmarks.claim_latency", "benchmarks.duty_drains"
_SHARED = ("sqlite", "postgres", "redis")

RUNNING = 100
DEAD_AFTER = 3.0
TIMEOUT = 300.0


@asynccontextmanager
async def _worker_fleet(run: Run, engine: str) -> AsyncIterator[WorkerFleet]:
    folder = run.folder("fleet")
    folder.mkdir()
    async with spawning() as spawn:
        fleet = WorkerFleet(spawn, run.url(engine), folder)
        async with fleet.broker:
            yield fleet


@measure("schedules", *_SHARED)
async def schedules(run: Run, engine: str) -> list[Result]:
    """Schedules fire once per due time, with many workers and a killed leader."""
    workers, count, seconds = run.size(8, 4), run.size(60, 20), run.size(30, 8)
    text = f"schedules · {engine} · {workers} workers × {count} schedules × {seconds} s"
    async with _worker_fleet(run, engine) as fleet:
        with run.progress.stage(text, 1):
            members = await fleet.start_many(workers, log_events=False)
            first = [
                await fleet.broker.schedule(Recurring(f"schedule {each}", every=1, task="tick"))
                for each in range(count)
            ]
            await asyncio.sleep(seconds / 2)
            await (await fleet.leader(members)).kill()
            await asyncio.sleep(seconds / 2)
            for schedule in first:
                await fleet.broker.pause_schedule(schedule.id)
            await fleet.until_idle()
            last = await fleet.broker.schedules()
            jobs = list((await fleet.jobs()).values())
    wrong = not_exactly_once(first, last, jobs)
    unfinished = sum(job.state is not JobState.DONE for job in jobs)
    times = sum(map(len, fired(jobs).values()))
    late = [each / SECOND for each in lateness(jobs)]
    shown = f"{times:,} fired, p50 {millis(median(late))} late, {millis(max(late))} at most; leader killed"
    return [
        Result(
            measure="schedules", engine=engine,
            description=f"{workers} workers × {count} schedules × {seconds} s: due times lost or doubled",
            figures=shown, value=len(wrong) + unfinished, unit="", at_most=0,
        )
    ]  # fmt: skip


@measure("precision", *_SHARED)
async def precision(run: Run, engine: str) -> list[Result]:
    """Delay of a schedule's job and of a scheduled job on an idle worker."""
    expected = run.size(300, 60)
    async with _worker_fleet(run, engine) as fleet:
        with run.progress.stage(f"precision · {engine}", 1):
            await fleet.start(log_events=False)
            for each in range(10):
                await fleet.broker.schedule(
                    Recurring(f"schedule {each}", every=0.83 + 0.07 * each, task="tick")
                )
            delayed = await fleet.enqueue_later("tick", *(1 + 0.037 * each for each in range(expected // 4)))

            async def all_done() -> bool:
                return (await fleet.broker.stats("default")).done >= expected + len(delayed)

            await until(all_done, TIMEOUT)
            jobs = await fleet.jobs(JobState.DONE)
    recurring = [each / SECOND for each in lateness(jobs.values())]
    scheduled = [((jobs[id].claimed_us or 0) - jobs[id].run_us) / SECOND for id in delayed]
    return [
        Result(
            measure="precision", engine=engine, description=f"{job} on an idle worker, p99 delay",
            figures=f"p50 {millis(median(late))}, at most {millis(max(late))}, of {len(late)}",
            value=percentile(late, 99) * 1000, unit="ms", at_most=100,
        )
        for job, late in (("a schedule's job", recurring), ("start of a scheduled job", scheduled))
    ]  # fmt: skip


@measure("dead-worker", *_SHARED)
async def dead_worker(run: Run, engine: str) -> list[Result]:
    """Time until the jobs of a killed worker run elsewhere or are dead."""
    foreign = engine != "sqlite"
    options = {"foreign": foreign, "dead_after": DEAD_AFTER, "concurrency": RUNNING}
    async with _worker_fleet(run, engine) as fleet:
        with run.progress.stage(f"dead-worker · {engine}", 1):
            victim = await fleet.start(**options)
            retried = await fleet.enqueue("hang", RUNNING // 2)
            exhausted = await fleet.enqueue("hang", RUNNING // 2, max_attempts=1)
            await fleet.until_running(retried + exhausted, victim.id)
            successor = await fleet.start(**options)
            await victim.kill()

            async def all_recovered() -> bool:
                jobs = await fleet.jobs()
                return all(jobs[id].worker == successor.id for id in retried) and all(
                    jobs[id].state is JobState.DEAD for id in exhausted
                )

            took = await until(all_recovered, TIMEOUT)
    where = f"on another machine, dead_after {DEAD_AFTER:g} s" if foreign else "on this machine"
    return [
        Result(
            measure="dead-worker", engine=engine,
            description=f"{RUNNING} jobs of a killed worker {where}: time until elsewhere or dead",
            figures="", value=took * 1000, unit="ms", at_most=((DEAD_AFTER if foreign else 0) + 5) * 1000,
        )
    ]  # fmt: skip


@measure("fleet-cost", "sqlite", "postgres")
async def fleet_cost(run: Run, engine: str) -> list[Result]:
    """Throughput of a worker with registry, heartbeat, duties and schedules, against one without."""
    jobs = run.size(50_000, 20_000)

    def drain(kind: str) -> Callable[[], Awaitable[float]]:
        async def drain_rate() -> float:
            return run_child(_DRAINS, kind, run.url(engine), jobs)["rate"]

        return drain_rate

    ours, bare = await run.in_turn(f"fleet-cost · {engine}", run.size(5, 3), drain("with"), drain("without"))
    return [
        Result(
            measure="fleet-cost", engine=engine,
            description="no-op tasks with registry, heartbeat, duties, schedules vs without",
            figures=f"{rate(median(ours))} vs {rate(median(bare))}",
            value=paired_ratio(ours, bare), unit="×", at_least=0.95,
        )
    ]  # fmt: skip


@measure("promotion", "sqlite", "memory", "postgres", "redis")
async def promotion(run: Run, engine: str) -> list[Result]:
    """Claim latency while many jobs become due at once, against the usual one."""
    jobs = run.size(100_000, 20_000)
    return _claims_during(run, engine, "promotion", jobs, "jobs become due at once", longest=100)


@measure("sweep", "sqlite", "memory", "postgres", "redis")
async def sweep(run: Run, engine: str) -> list[Result]:
    """Claim latency while many finished jobs are swept, against the usual one."""
    return _claims_during(
        run, engine, "sweep", run.size(1_000_000, 50_000), "expired jobs are swept", ratio=2
    )


def _claims_during(
    run: Run, engine: str, kind: str, jobs: int, event: str, *,
    ratio: float | None = None, longest: float | None = None,
) -> list[Result]:  # fmt: skip
    with run.progress.stage(f"{kind} · {engine} · {jobs:,} jobs", 1):
        found = run_child(_CLAIM_LATENCY, kind, run.url(engine), jobs)
    at = f"{number(found['done'])} in {found['seconds']:.0f} s"
    return [
        Result(
            measure=kind, engine=engine, description=f"a claim while {jobs:,} {event} vs usual, p50",
            figures=f"{millis(found['during'])} vs {millis(found['usual'])}; {at}",
            value=found["during"] / found["usual"], unit="×", at_most=ratio,
        ),
        Result(
            measure=kind, engine=engine, description="the same, p99",
            figures=f"{millis(found['during_p99'])} vs {millis(found['usual_p99'])}, "
            f"at most {millis(found['longest'])}",
            value=found["during_p99"] * 1000, unit="ms", at_most=longest,
        ),
    ]  # fmt: skip
