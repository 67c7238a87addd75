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
    took, cpu = [], []
    with run.screen.stage("import-time", _TRIES) as advance:
        for _ in range(_TRIES):
            took.append(_import_seconds())
            cpu.append(_cpu_seconds())
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
        ),
        Finding(
            measure="import-time",
            engine=engine,
            what="the CPU time of it, which a busy machine adds less to",
            figures=f"{millis(min(cpu))} to {millis(max(cpu))}",
            value=min(cpu) * 1000,
            unit="ms",
        ),
    ]


_CPU_TIME = "import time; start = time.process_time(); import dayjob; print(time.process_time() - start)"


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that may use, and leave behind, compiled modules."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)


def _cpu_seconds() -> float:
    return float(_python("-c", _CPU_TIME).stdout)


def _import_seconds() -> float:
    report = _python("-X", "importtime", "-c", "import dayjob").stderr
    rows = (line.removeprefix("import time:").split("|") for line in report.splitlines())
    return next(int(row[1]) / 1e6 for row in rows if len(row) == 3 and row[2].strip() == "dayjob")
