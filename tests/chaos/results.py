"""The log of recorded runs, and the table of docs/reliability.md that is made from it.

``python -m tests.chaos.results`` writes the table. A test compares the page with the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dayjob.model.durations import to_datetime
from dayjob.runtime.clock import SYSTEM
from tests.chaos.chaos_run import Outcome

LOG = Path(__file__).with_name("RESULTS.md")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

NAMES = {
    "memory": "memory", "sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis",
    "slatedb": "object storage",
}  # fmt: skip
COLUMNS = (
    "engine", "runs", "minutes", "faults", "jobs", "at risk", "lost",
    "double-settled", "worst recovery", "longest pause", "seeds",
)  # fmt: skip
_BLOCK = re.compile(r"(<!-- table: chaos -->\n).*?(<!-- end of table -->)", re.DOTALL)


def row(found: Outcome) -> str:
    """Return the line of the log for a run."""
    faults = ", ".join(f"{kind} {number}" for kind, number in sorted(found.faults.items()))
    cells = (
        f"{to_datetime(SYSTEM.now()):%Y-%m-%d %H:%M}", found.engine, found.seed, f"{found.seconds / 60:g}",
        sum(found.faults.values()), found.jobs, found.settled, found.at_risk, found.lost,
        found.double_settled, len(found.violations), f"{found.recovery:.1f}",
        f"{found.pause:.1f}", faults,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |\n"


def append(found: Outcome) -> None:
    with LOG.open("a") as log:
        log.write(row(found))


def table(log: str) -> Iterator[str]:
    """Yield the lines of the table: all runs of an engine in the last section of the log, in one line."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in log.rpartition("\n## ")[2].splitlines()
        if line.startswith("| 20")
    ]
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"| {' | '.join('---' for _ in COLUMNS)} |"
    for engine, name in NAMES.items():
        runs = [row for row in rows if row[1] == engine]
        if runs:
            sums = [f"{sum(int(row[column]) for row in runs):,}" for column in (4, 5, 7, 8, 9)]
            cells = (
                name, len(runs), f"{sum(float(row[3]) for row in runs):g}", *sums,
                f"{max(float(row[11]) for row in runs):g} s",
                f"{max(float(row[12]) for row in runs):g} s", ", ".join(row[2] for row in runs),
            )  # fmt: skip
            yield f"| {' | '.join(map(str, cells))} |"


def filled(page: str, log: str) -> str:
    """Return the page with the table of the log."""
    return _BLOCK.sub(lambda found: f"{found[1]}{chr(10).join(table(log))}\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), LOG.read_text()))
