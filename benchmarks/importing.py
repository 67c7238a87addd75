"""What ``import dayjob`` costs a program."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.findings import Finding, millis
from benchmarks.run import Run, measure

_TRIES = 7


@measure("import-time")
async def import_time(run: Run, engine: str) -> list[Finding]:
    """The time that ``import dayjob`` adds to the start of a program."""
    took = []
    with run.screen.stage("import-time", _TRIES) as advance:
        for _ in range(_TRIES):
            took.append(_import_seconds())
            advance(1)
    return [
        Finding(
            measure="import-time",
            engine=engine,
            what=f"import dayjob, best of {_TRIES}",
            figures=f"{millis(min(took))} to {millis(max(took))}",
            value=min(took) * 1000,
            unit="ms",
            at_most=60,
        )
    ]


def _import_seconds() -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import dayjob"],
        capture_output=True, text=True, check=True, timeout=60, env=environment,
    )  # fmt: skip
    rows = (line.removeprefix("import time:").split("|") for line in ran.stderr.splitlines())
    return next(int(row[1]) / 1e6 for row in rows if len(row) == 3 and row[2].strip() == "dayjob")
