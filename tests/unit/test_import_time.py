"""Importing dayjob is quick and loads no engine driver."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.bound import BOUND

LIMIT = 60_000
RUNS = 60
DRIVERS = {"sqlite3", "asyncpg", "psycopg", "redis", "slatedb"}
INTERFACES = {"click", "rich", "starlette", "uvicorn", "prometheus_client", "opentelemetry"}


def imports() -> dict[str, int]:
    """Return the modules that ``import dayjob`` loads, with the microseconds of each."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import dayjob"],
        capture_output=True, text=True, check=True, timeout=BOUND, env=environment,
    )  # fmt: skip
    rows = [line.removeprefix("import time:").split("|") for line in ran.stderr.splitlines()]
    times = {name.strip(): microseconds.strip() for microseconds, _, name in rows}
    names = list(times)
    return {name: int(times[name]) for name in names[names.index("site") + 1 :]}


def test_importing_dayjob_adds_less_than_60_ms() -> None:
    # Noise only adds to the time of a module, so the minimum over several runs is used.
    least = imports()
    for _ in range(RUNS):
        least = {name: min(own, least.get(name, own)) for name, own in imports().items()}
        if sum(least.values()) < LIMIT:
            break
    slowest = sorted(least, key=lambda name: -least[name])[:10]
    assert sum(least.values()) < LIMIT, {name: least[name] for name in slowest}


def test_importing_dayjob_loads_no_engine_driver_and_no_interface() -> None:
    loaded = {name.partition(".")[0] for name in imports()}
    assert "dayjob" in loaded
    assert loaded & (DRIVERS | INTERFACES) == set()
