"""Cost must not grow with the backlog, nor with the finished jobs that are kept.

Three stores are compared, each in a process of its own: a small one, one with a large backlog, and one
with as many done jobs kept beside a small backlog.
"""

from __future__ import annotations

from statistics import median

from benchmarks.findings import Finding, millis, paired_ratio, percentile, rate
from benchmarks.run import ENGINES, Run, measure
from benchmarks.side import Side
from benchmarks.workloads import drain_and_refill, fill, time_stats

_FEW = 10_000

_MOST_STATS = {"sqlite": 10.0, "memory": 10.0, "postgres": 50.0}
"""Milliseconds that counting may take."""


def _many(run: Run) -> int:
    return run.size(1_000_000, 100_000)


def _side(run: Run, engine: str, pending: int, done: int) -> Side:
    def make() -> Side:
        side = Side(run.url(engine))
        # A disk sync per commit would make filling slow, and the file is the same afterwards.
        options = "?synchronous=normal" if engine == "sqlite" else ""
        text = f"filling · {engine} · {pending:,} pending, {done:,} done"
        with run.screen.stage(text, pending + done) as advance:
            side.ask_for_long(advance, fill, pending, done, options)
        return side

    return run.shared_side(f"{engine} {pending} {done}", make)


async def _compare(
    run: Run, name: str, engine: str, what: str, large: Side, *, keep: bool, slow_calls: bool = False
) -> list[Finding]:
    small = _side(run, engine, _FEW, 0)
    batches = 10
    longest: list[float] = []

    async def on_large() -> float:
        speed, long_call = large.ask(drain_and_refill, batches, keep)
        longest.append(long_call)
        return speed

    async def on_small() -> float:
        return small.ask(drain_and_refill, batches, keep)[0]

    ours, theirs = await run.in_turn(f"{name} · {engine} · {what}", run.size(51, 21), on_large, on_small)
    findings = [
        Finding(
            measure=name,
            engine=engine,
            what=what,
            figures=f"{rate(median(ours))} vs {rate(median(theirs))}",
            value=paired_ratio(ours, theirs),
            unit="×",
            at_least=0.7,
        )
    ]
    if slow_calls:
        findings.append(
            Finding(
                measure=name,
                engine=engine,
                what="the longest of these claims and acks of 100",
                figures=f"median round {millis(median(longest[1:]))}",
                value=max(longest[1:]) * 1000,
                unit="ms",
            )
        )
    return findings


@measure("flat-pending", *ENGINES)
async def flat_pending(run: Run, engine: str) -> list[Finding]:
    """Claim and ack with a large backlog."""
    many = _many(run)
    what = f"claim+ack with {many:,} pending vs {_FEW:,}"
    large = _side(run, engine, many, 0)
    return await _compare(run, "flat-pending", engine, what, large, keep=False, slow_calls=True)


@measure("flat-done", *ENGINES)
async def flat_done(run: Run, engine: str) -> list[Finding]:
    """Claim and ack with many done jobs kept."""
    many = _many(run)
    large = _side(run, engine, _FEW, many)
    what = f"claim+ack with {many:,} done kept vs none"
    return [
        *await _compare(run, "flat-done", engine, what, large, keep=False, slow_calls=True),
        *await _compare(run, "flat-done", engine, f"{what}, acks kept too", large, keep=True),
    ]


@measure("stats", *ENGINES)
async def stats(run: Run, engine: str) -> list[Finding]:
    """Counting a large store."""
    many = _many(run)
    large = _side(run, engine, many, 0)
    findings = []
    for every_queue, name in ((False, "stats"), (True, "all_stats, 101 queues")):
        with run.screen.stage(f"stats · {engine} · {name}", 1):
            took = large.ask(time_stats, 100, every_queue)
        findings.append(
            Finding(
                measure="stats",
                engine=engine,
                what=f"{name}, {many:,} jobs",
                figures=f"p50 {millis(median(took))}, p99 {millis(percentile(took, 99))}",
                value=median(took) * 1000,
                unit="ms",
                at_most=_MOST_STATS[engine],
            )
        )
    return findings
