"""``python -m benchmarks.soak``: a steady load for a long time, and whether anything grows.

Producer and worker are two processes, or one if only one can open the store. Each window gives the completed
jobs per second, the latencies, the memory of both processes, and the rows and bytes of the store. After a
warm-up, each of them must be flat: the exit code is 1 if one grows, or the throughput falls.

The judgement is about dayjob, not about the machine: times are judged only in windows in which other
processes left the processors alone. Memory settles in steps, as an allocator or a write buffer reaches its
size, and files keep their largest size; a leak never ends. So memory, rows and store are not flat only if
they still grow in the last half of the judged windows.
"""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from msgspec import Struct

from benchmarks.machine import OtherLoad
from benchmarks.open_loop import arrivals
from benchmarks.processes import start_child
from benchmarks.results import number, percentile
from benchmarks.run import ENGINES, Run, new_run
from benchmarks.server import query_sql
from benchmarks.soak_load import RETENTION
from dayjob.runtime.process import MEBIBYTE
from tests.support.servers.redis import client

WINDOW = 10.0
"""Seconds of a window."""

WARM_UP = 15 * 60
"""Seconds that are not judged, at most half of the run."""

STEADY = {"postgres": 11 * 60, "slatedb": 26 * 60}
"""Seconds after which the size of a store can be judged.

PostgreSQL keeps replies for ten minutes. SlateDB removes tables every ten minutes, if older than five.
"""

SIGNIFICANT = 3.0
"""The standard deviations of a trend that is no chance."""

TOLERATED = 0.1
"""The growth over the judged part, relative to its level, that counts as flat."""

LEAK = 0.5
"""MiB per minute by which a process may not grow, however large it is."""

SLOWED = 0.25
"""A growth has ended if its slope in the last half of the judged windows is below this part of the whole."""

FEWEST = 7
"""A shorter series shows no significant trend, not even if each value is above the one before."""

QUIET = 0.15
"""The share of the processors that other work may use in a window whose times are judged."""

_PAUSE = 0.1
"""Seconds before a window, in which its times reach the processes."""

SHOWN = 20
"""Lines of the table."""


class Column(Struct, frozen=True):
    """A value that is measured in each window.

    ``falling``: a fall is the defect, otherwise a growth. ``timed``: other work on the machine changes it.
    ``memory``: it is the MiB of a process. ``size``: it is a size of the store.
    """

    name: str
    title: str
    falling: bool = False
    timed: bool = False
    memory: bool = False
    size: bool = False


COLUMNS = (
    Column("rate", "jobs/s", falling=True, timed=True),
    Column("start-p50", "start p50 ms", timed=True),
    Column("start-p99", "start p99 ms", timed=True),
    Column("settled-p99", "settled p99 ms", timed=True),
    Column("enqueue-p99", "enqueue p99 ms", timed=True),
    Column("worker-mib", "worker MiB", memory=True),
    Column("producer-mib", "producer MiB", memory=True),
    Column("rows", "rows", size=True),
    Column("store-mib", "store MiB", size=True),
)

Window = dict[str, float]


# Flat or not.


class Trend(Struct, frozen=True):
    """The growth of a series relative to its level, its slope per window, and its distance from chance."""

    growth: float
    slope: float
    deviations: float

    def is_chance(self) -> bool:
        return abs(self.deviations) <= SIGNIFICANT


def trend(values: Sequence[float]) -> Trend:
    """Return the median of all slopes (Theil–Sen), and the Mann–Kendall test. An outlier has no weight."""
    pairs = list(combinations(range(len(values)), 2))
    level = median(values) if values else 0.0
    if len(values) < 4 or not math.isfinite(level):
        return Trend(0.0, 0.0, 0.0)
    slope = median((values[later] - values[first]) / (later - first) for first, later in pairs)
    signs = sum((values[later] > values[first]) - (values[later] < values[first]) for first, later in pairs)
    count = len(values)
    variance = count * (count - 1) * (2 * count + 5) / 18
    return Trend(slope * (count - 1) / (abs(level) or 1.0), slope, signs / math.sqrt(variance))


def _defect(column: Column, values: Sequence[float], window: float) -> str | None:
    """Return the trend of a series in words, if it is a defect."""
    whole = trend(values)
    growth = -whole.growth if column.falling else whole.growth
    per_minute = whole.slope * 60 / window
    if whole.is_chance() or not (growth > TOLERATED or (column.memory and per_minute > LEAK)):
        return None
    if (column.memory or column.size) and _has_settled(values, whole):
        return None
    speed = f", {per_minute:+.2g} MiB per minute" if column.memory else ""
    return f"{whole.growth:+.0%} in {len(values)} windows{speed}"


def _has_settled(values: Sequence[float], whole: Trend) -> bool:
    half = values[len(values) // 2 :]
    late = trend(half)
    return len(half) >= FEWEST and (late.is_chance() or late.slope < whole.slope * SLOWED)


def judged(windows: Sequence[Window], window: float) -> Sequence[Window]:
    """Return the windows after the warm-up."""
    return windows[min(round(WARM_UP / window), len(windows) // 2) :]


def quiet(windows: Sequence[Window]) -> list[Window]:
    """Return the windows in which other work left the processors alone; none if they are less than half."""
    alone = [each for each in windows if each.get("others", 0.0) <= QUIET]
    return alone if 2 * len(alone) >= len(windows) else []


def _values(column: Column, windows: Sequence[Window], engine: str, window: float) -> list[float]:
    """Return the values of a column to judge, none if there are too few windows without a known cause."""
    after = judged(windows, window)
    if column.timed:
        after = quiet(after)
    if column.size:
        steady = math.ceil(STEADY.get(engine, 0) / window)
        after = after[max(steady - (len(windows) - len(after)), 0) :]
        after = after if len(after) >= FEWEST or engine not in STEADY else []
    return [each[column.name] for each in after if column.name in each]


def defects(windows: Sequence[Window], engine: str = "sqlite", window: float = WINDOW) -> dict[str, str]:
    """Return the columns that are not flat, each with its trend in words."""
    found: dict[str, str] = {}
    for column in COLUMNS:
        if (text := _defect(column, _values(column, windows, engine, window), window)) is not None:
            found[column.title] = text
    lost = sum(each["offered"] - each["done"] for each in windows)
    if lost:
        found["jobs"] = f"{number(lost)} were not done within a minute of their window"
    return found


def summary(windows: Sequence[Window], engine: str = "sqlite", window: float = WINDOW) -> str:
    """Return the result of a run in words."""
    after = judged(windows, window)
    jobs = sum(each["done"] for each in windows)
    others = percentile([each.get("others", 0.0) for each in after], 50)
    lines = [
        f"{jobs:,.0f} jobs; judged: {len(after)} of {len(windows)} windows; "
        f"other work used {others:.0%} of the processors (median)"
    ]
    columns = [column for column in COLUMNS if any(column.name in each for each in windows)]
    omitted = [column.title for column in columns if not _values(column, windows, engine, window)]
    if omitted:
        lines.append(f"not judged, because the machine was busy or the run too short: {', '.join(omitted)}")
    trends = "; ".join(f"{name} {text}" for name, text in defects(windows, engine, window).items())
    return "\n".join([*lines, f"NOT FLAT: {trends}" if trends else "flat"])


# The store.


def store_size(run: Run, engine: str, url: str) -> Window:
    """Return the rows and the size of the store. The memory engine has neither."""
    if engine == "sqlite":
        path = Path(urlsplit(url).path.replace("//", "/"))
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            rows = sum(database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for (name,) in names)
        database.close()
        return {"rows": rows, "store-mib": sum(map(_bytes, path.parent.glob(f"{path.name}*"))) / MEBIBYTE}
    if engine == "postgres":
        rows, size = query_sql(url, _POSTGRES_SIZE)
        return {"rows": rows, "store-mib": size / MEBIBYTE}
    if engine == "redis":
        with client(run.redis().url) as connection:
            counts = {"hash": connection.hlen, "zset": connection.zcard, "set": connection.scard}
            kinds = [(key, connection.type(key).decode()) for key in connection.scan_iter(count=1000)]
            rows = sum(counts[kind](key) if kind in counts else 1 for key, kind in kinds)
            return {"rows": rows, "store-mib": connection.info("memory")["used_memory"] / MEBIBYTE}
    if engine == "slatedb":
        files = [path for path in Path(urlsplit(url).path).rglob("*") if path.is_file()]
        return {"rows": len(files), "store-mib": sum(map(_bytes, files)) / MEBIBYTE}
    return {}


_POSTGRES_SIZE = """SELECT ARRAY[
    (SELECT count(*) FROM dayjob.jobs) + (SELECT count(*) FROM dayjob.replies)
    + (SELECT count(*) FROM dayjob.counters) + (SELECT count(*) FROM dayjob.documents),
    pg_database_size(current_database())]::float8[]"""


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


# The run.


def soak(
    run: Run,
    engine: str,
    rate: int,
    seconds: float,
    window: float = WINDOW,
    load: str = "benchmarks.soak_load",
) -> list[Window]:
    url = run.url(engine)
    due = arrivals(rate, math.ceil(seconds))
    single = engine in ("memory", "slatedb")
    windows: list[Window] = []
    with (
        ExitStack() as stack,
        run.progress.stage(f"soak · {engine} · {rate}/s", round(seconds / window)) as advance,
    ):
        kinds = ("both",) if single else ("work", "produce")
        children = [stack.enter_context(start_child(load, kind, url, 0)) for kind in kinds]
        for child in children:
            child.wait_until_ready()
        others = OtherLoad(run.root)
        for position in range(round(seconds / window)):
            first, last = (bisect_left(due, edge * window) for edge in (position, position + 1))
            begin = time.perf_counter() + _PAUSE
            times = [begin + moment - position * window for moment in due[first:last]]
            for kind, child in zip(kinds, children, strict=True):
                line = (len(times), times[-1]) if kind == "work" else times
                child.send(" ".join(map(str, line)))
            answers = [child.receive() for child in children]
            took = time.perf_counter() - begin
            found = _window(answers, last - first, took) | {"others": others.share()}
            windows.append(found | store_size(run, engine, url))
            advance(1)
        for child in children:
            child.send("")
    return windows


def _window(answers: Sequence[Window], offered: int, took: float) -> Window:
    work = answers[0]
    found = {"offered": offered, "done": work["done"], "rate": work["done"] / took, "worker-mib": work["mib"]}
    if len(answers) > 1:
        found["producer-mib"] = answers[1]["mib"]
    latencies = {key: value for each in answers for key, value in each.items() if "-p" in key}
    return found | {key: value * 1000 for key, value in latencies.items()}


# The table.


def table(windows: Sequence[Window], window: float = WINDOW) -> str:
    """Return some twenty lines over time, each with the median of its windows."""
    columns = [column for column in COLUMNS if any(column.name in each for each in windows)]
    lines = [["minute", *(column.title for column in columns)], ["---"] * (len(columns) + 1)]
    step = max(math.ceil(len(windows) / SHOWN), 1)
    for first in range(0, len(windows), step):
        some = windows[first : first + step]
        values = [number(percentile([each[column.name] for each in some], 50)) for column in columns]
        lines.append([f"{first * window / 60:.1f}", *values])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="sqlite")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=200, help="jobs per second")
    parser.add_argument("--series", type=Path, help="write the values of each window to this file, as JSON")
    options = parser.parse_args(arguments)
    with new_run(quick=False) as run:
        windows = soak(run, options.engine, options.rate, options.minutes * 60)
    print(f"{options.engine}, {options.rate} jobs/s, done jobs kept for {RETENTION} s\n")
    print(table(windows))
    print(f"\n{summary(windows, options.engine)}")
    if options.series is not None:
        options.series.write_text("".join(f"{json.dumps(each)}\n" for each in windows))
    return int(bool(defects(windows, options.engine)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
