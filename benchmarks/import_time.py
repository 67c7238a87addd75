"""The cost of ``import dayjob``."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.results import Result, millis
from benchmarks.run import Run, measure

_TRIES = 7


@measure("import-time")
async def import_time(run: Run, engine: str) -> list[Result]:
    """Time that ``import dayjob`` adds to the start of a program."""
    took, cpu = [], []
    with run.progress.stage("import-time", _TRIES) as advance:
        for _ in range(_TRIES):
            took.append(_import_seconds())
            cpu.append(_cpu_seconds())
            advance(1)
    return [
        Result(
            measure="import-time",
            engine=engine,
            description=f"import dayjob, best of {_TRIES}",
            figures=f"{millis(min(took))} to {millis(max(took))}",
            value=min(took) * 1000,
            unit="ms",
            at_most=60,
        ),
        Result(
            measure="import-time",
            engine=engine,
            description="its CPU time, which depends less on other load",
            figures=f"{millis(min(cpu))} to {millis(max(cpu))}",
            value=min(cpu) * 1000,
            unit="ms",
        ),
    ]


_CPU_TIME = "import time; start = time.process_time(); import dayjob; print(time.process_time() - start)"


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter that may read and write compiled modules."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)


def _cpu_seconds() -> float:
    return float(_python("-c", _CPU_TIME).stdout)


def _import_seconds() -> float:
    report = _python("-X", "importtime", "-c", "import dayjob").stderr
    rows = (line.removeprefix("import time:").split("|") for line in report.splitlines())
    return next(int(row[1]) / 1e6 for row in rows if len(row) == 3 and row[2].strip() == "dayjob")
