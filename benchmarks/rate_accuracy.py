"""How exact a rate is: the starts of several worker processes by the clock of the storage."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from contextlib import AsyncExitStack, ExitStack
from random import Random

from benchmarks.processes import start_child
from benchmarks.rated_worker import BURST, RATE, TOKENS, make_app, workers
from benchmarks.results import Result
from benchmarks.run import Run, measure
from dayjob import App, Job, JobState

_WORKERS = 3
_SECOND = 1_000_000
_SETTLED = 2
"""Seconds until the workers run and the burst is used up."""

_BURSTS = {"slatedb": 50}
"""A start that is late by more than the burst is not made up, and a claim in a bucket takes long."""

_ENGINES = ("memory", "sqlite", "postgres", "redis", "slatedb")


async def _starts(url: str, app: App, seconds: float) -> list[Job]:
    """Run the workers for some seconds, in processes of their own where the engine allows it.

    Return the jobs that have run, in the order of their starts.
    """
    with ExitStack() as children:
        async with AsyncExitStack() as local:
            if app.broker.capabilities.multi_process:
                started = [
                    children.enter_context(start_child("benchmarks.rated_worker", "work", url, 1))
                    for _ in range(_WORKERS)
                ]
                for child in started:
                    child.wait_until_ready()
            else:
                await local.enter_async_context(workers(app, _WORKERS))
            await asyncio.sleep(_SETTLED + seconds)
    jobs = await app.broker.jobs(state=JobState.DONE, limit=10_000)
    return sorted(jobs, key=lambda job: job.claimed_us or 0)


@measure("rate-limit", *_ENGINES)
async def rate_limit(run: Run, engine: str) -> list[Result]:
    """Starts of three workers at a rate of 100 a second for 20 seconds, and the most within a second."""
    seconds = run.size(20, 4)
    url, burst = run.url(engine), _BURSTS.get(engine, BURST)
    with run.progress.stage(f"rate-limit · {engine}", 1) as advance:
        async with make_app(url, burst) as app:
            await app.tasks["rated"].aenqueue_many([()] * (seconds + 10) * 100)
            times = [job.claimed_us or 0 for job in await _starts(url, app, seconds)]
        advance(1)
    begin = times[0] + _SETTLED * _SECOND // 2
    within = bisect_left(times, begin + seconds * _SECOND) - bisect_left(times, begin)
    expected = seconds * RATE
    most = max(bisect_left(times, time + _SECOND) - number for number, time in enumerate(times))
    return [
        _share("rate-limit", engine, f"starts in {seconds} s at 100/s, by three workers", within, expected),
        Result(
            measure="rate-limit",
            engine=engine,
            description=f"most starts within a second; burst {burst}",
            figures=f"{most} of at most {RATE + burst}",
            value=most,
            unit="",
            at_most=RATE + burst,
        ),
    ]


@measure("charged-units", *_ENGINES)
async def charged_units(run: Run, engine: str) -> list[Result]:
    """Units that jobs have charged in a minute, by three workers, against the budget of their limit."""
    seconds = run.size(60, 6)
    url, random = run.url(engine), Random(20)
    with run.progress.stage(f"charged-units · {engine}", 1) as advance:
        async with make_app(url) as app:
            task = app.tasks["charged"].using(units={"tokens": 100})
            calls = [(random.randint(50, 150),) for _ in range((seconds + 10) * 12)]
            handles = await task.aenqueue_many(calls)
            charged = {handle.id: tokens for handle, (tokens,) in zip(handles, calls, strict=True)}
            jobs = await _starts(url, app, seconds)
        advance(1)
    begin = (jobs[0].claimed_us or 0) + _SETTLED * _SECOND // 2
    end = begin + seconds * _SECOND
    used = sum(charged[job.id] for job in jobs if begin <= (job.claimed_us or 0) < end)
    expected = seconds * (TOKENS.rate or 0) / 60
    return [_share("charged-units", engine, f"units charged in {seconds} s", used, expected)]


def _share(measure: str, engine: str, description: str, actual: float, expected: float) -> Result:
    return Result(
        measure=measure,
        engine=engine,
        description=f"{description}, off by",
        figures=f"{actual:,.0f} of {expected:,.0f}",
        value=100 * abs(actual / expected - 1),
        unit="%",
        at_most=2,
    )
