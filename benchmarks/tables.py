"""The tables of README.md and docs/benchmarks.md, from the log: ``python -m benchmarks.tables``.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``. Each measure of an engine
counts with its last run. A test compares the pages with the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import floor

from msgspec import Struct

from benchmarks.report import LOG

ROOT = LOG.parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")

_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_ENGINES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis", "slatedb": "object storage"}
_DRAINS = {"sqlite": "worker-drain", "postgres": "peer-drain", "redis": "redis-drain"}
_NAMES = {
    "bullmq": "BullMQ (Node)", "dramatiq": "Dramatiq", "graphile-worker": "graphile-worker (Node)",
    "taskiq": "TaskIQ",
}  # fmt: skip
_LOAD = re.compile(r"(?P<library>.*), (?P<load>[\d,]+)/s: (?P<value>.*)")


class Row(Struct, frozen=True):
    """One result of the log."""

    measure: str
    engine: str
    description: str
    figures: str
    result: str


def last_rows(log: str) -> list[Row]:
    """Return the results of the last run of each measure and engine."""
    last: dict[tuple[str, str], list[Row]] = {}
    for section in log.split("\n## ")[1:]:
        rows = [
            Row(*(cell.strip() for cell in line.split("|")[1:6]))
            for line in section.splitlines()
            if line.startswith("| ") and not line.startswith(("| measure ", "| --- "))
        ]
        for key in dict.fromkeys((row.measure, row.engine) for row in rows):
            last[key] = [row for row in rows if (row.measure, row.engine) == key]
    return [row for rows in last.values() for row in rows]


def drained(rows: Sequence[Row]) -> Iterable[Sequence[str]]:
    """Yield the engines, with the ratio to each peer. dayjob has its defaults."""
    yield "on", "drained, compared with"
    for engine, measure in _DRAINS.items():
        found = [
            row
            for row in rows
            if (row.measure, row.engine) == (measure, engine) and " vs " in row.description
        ]
        defaults = [row for row in found if "defaults" in row.description]
        ratios: dict[str, str] = {}
        for row in defaults or found:
            peer = row.description.rpartition(" vs ")[2].split()[0].strip(",")
            if not peer[0].isdigit():
                ratios.setdefault(_NAMES.get(peer, peer), rounded_down(row.result))
        if ratios:
            compared = ", ".join(f"{peer} {ratio}" for peer, ratio in ratios.items())
            yield _ENGINES[engine], compared if defaults else f"{compared}; no done jobs kept"
    for row in rows:
        if row.measure == "port-drain":
            rate = row.figures.partition(" ")[0]
            yield (
                _ENGINES["slatedb"],
                f"no peer: {rate} in a folder; a queue of one transaction per operation "
                + (rounded_down(row.result)),
            )


def rounded_down(ratio: str) -> str:
    """Return a ratio such as ``12.7×`` with two digits, never more than measured."""
    value = float(ratio.removesuffix("×").replace(",", ""))
    return f"{floor(value)}×" if value >= 10 else f"{floor(value * 10) / 10}×"


def _loads(rows: Sequence[Row]) -> Iterable[tuple[Row, tuple[str, str], str, str]]:
    """Yield the rows of the loads, with storage and library, the load, and the name of the value."""
    for row in rows:
        if row.measure == "offered-load" and (found := _LOAD.fullmatch(row.description)):
            where, _, library = found["library"].rpartition(", ")
            on = _ENGINES.get(row.engine, row.engine) + (f", {where}" if where else "")
            ours = library in ("defaults", "tuned")
            yield row, (on, f"dayjob, {library}" if ours else library), found["load"], found["value"]


def _latency(row: Row) -> str:
    if row.result.endswith("/s"):
        return f"{row.result} at most"
    middle = row.figures.partition(";")[0].removeprefix("p50 ")
    return f"{middle.removesuffix(' ms')} / {row.result.removesuffix(' ms')}"


def latency(rows: Sequence[Row], *, peers: bool = True) -> Iterable[Sequence[str]]:
    """Yield a line per library, with the latency at each load."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row, place, load, value in _loads(rows):
        is_latency = value.startswith(("enqueue to start", "falls behind"))
        if is_latency and (peers or place[1] == "dayjob, defaults"):
            found.setdefault(place, {})[load] = _latency(row)
    loads = list(dict.fromkeys(load for each in found.values() for load in each))
    yield ("on", *(("library",) if peers else ()), *(f"{load} jobs/s" for load in loads))
    for (on, name), each in found.items():
        yield (on, *((name,) if peers else ()), *(each.get(load, "") for load in loads))


def cost(rows: Sequence[Row]) -> Iterable[Sequence[str]]:
    """Yield a line per library, with the cost of a job on the server and the memory of both sides."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row, place, _, value in _loads(rows):
        each = found.setdefault(place, {})
        if value == "memory of the worker":
            each["memory"] = f"{row.result}, {row.figures.partition(' of ')[0]}"
        elif value.endswith("per job"):
            unit = "WAL" if value.startswith("WAL") else "commands"
            each["cost"] = f"{row.result} {'of ' if unit == 'WAL' else ''}{unit}, {row.figures}"
    yield "on", "library", "a job costs the server", "worker, producer"
    for (on, library), each in found.items():
        if each:
            yield on, library, each.get("cost", ""), each.get("memory", "")


def producers(rows: Sequence[Row]) -> Iterable[Sequence[str]]:
    """Yield a line per library, with the enqueues of a hundred producers."""
    yield "on", "library", "enqueues", "one enqueue"
    for row in rows:
        if row.measure != "many-producers":
            continue
        _, _, peer = row.description.partition(" vs ")
        if not peer:
            yield _ENGINES[row.engine], "dayjob, defaults", row.result, row.figures
        else:
            rates, _, timed = row.figures.partition(", p50")
            yield (
                _ENGINES[row.engine],
                peer.replace("tuned", "dayjob, tuned"),
                rates.partition(" vs ")[2],
                (f"p50{timed}"),
            )


TABLES: dict[str, Callable[[Sequence[Row]], Iterable[Sequence[str]]]] = {
    "drained": drained,
    "latency": latency,
    "latency-of-defaults": lambda rows: latency(rows, peers=False),
    "cost": cost,
    "producers": producers,
}

CAPTIONS = {
    "latency-of-defaults": "The time from the enqueue to the start of the handler with the defaults, "
    "p50 / p99 in ms, at loads that a slow queue does not slow down:"
}


def with_tables(page: str, rows: Sequence[Row]) -> str:
    """Return the page with its tables. A table without results has no lines."""

    def replace(found: re.Match[str]) -> str:
        head, *lines = TABLES[found[2]](rows)
        table = [head, ["---"] * len(head), *lines] if lines else []
        caption = f"{CAPTIONS[found[2]]}\n\n" if lines and found[2] in CAPTIONS else ""
        return found[1] + caption + "".join(f"| {' | '.join(line)} |\n" for line in table) + found[3]

    return _BLOCK.sub(replace, page)


def main() -> None:
    rows = last_rows(LOG.read_text(encoding="utf-8"))
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
