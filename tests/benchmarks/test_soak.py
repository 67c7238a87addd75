"""The judgement of a soak: growth and leaks are found.

Noise, memory that settles, single outliers and the load of other processes are not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

from benchmarks.machine import OtherLoad
from benchmarks.run import new_run
from benchmarks.soak import COLUMNS, WINDOW, Window, defects, soak, summary, table, trend
from dayjob.runtime.clock import block

_noise = cycle([0.97, 1.03, 0.99, 1.05, 0.95, 1.01, 1.04, 0.96])


def window(**values: float) -> Window:
    flat = {column.name: 100.0 * next(_noise) for column in COLUMNS}
    return flat | {"offered": 1000.0, "done": 1000.0} | values


def titles(windows: list[Window], engine: str = "sqlite") -> list[str]:
    return list(defects(windows, engine))


def test_noise_is_flat() -> None:
    assert titles([window() for _ in range(360)]) == []


def test_slow_growth_is_found() -> None:
    grows = [window(**{"worker-mib": 100 + position / 10}) for position in range(360)]
    assert titles(grows) == ["worker MiB"]


def test_a_fall_of_the_throughput_is_found_and_its_rise_is_not() -> None:
    assert titles([window(rate=500 - position) for position in range(200)]) == ["jobs/s"]
    assert titles([window(rate=500 + position) for position in range(200)]) == []


def test_growth_before_the_warm_up_and_single_outliers_are_flat() -> None:
    grows_first = [window(rows=min(position, 60) * 10.0) for position in range(360)]
    assert titles(grows_first) == []
    outliers = [window(**{"start-p99": 5000.0 if position % 50 == 0 else 5.0}) for position in range(360)]
    assert titles(outliers) == []


def memory(values: list[float]) -> list[Window]:
    return [window(**{"worker-mib": value}) for value in values]


SETTLING = [
    50.4, 51.5, 52.5, 53.6, 54.6, 55.6, 56.6, 57.6, 58.5, 59.4, 60.3, 61.3, 62.2, 63.2, 64.2, 65.2, 66.2,
    67.4, 68.6, 69.7, 70.9, 72.4, 74.0, 75.5, 77.0, 77.2, 77.5, 77.8, 78.1, 78.3, 78.4, 78.6, 78.7, 79.6,
    80.5, 81.4, *[82.3] * 24,
]  # fmt: skip
"""A process that fills its buffers and then settles, as one of object storage does."""


@pytest.mark.parametrize("level", [40.0, 100.0, 400.0])
def test_a_leak_of_a_mebibyte_a_minute_is_found_in_ten_minutes(level: float) -> None:
    noise = cycle([0.0, 0.3, -0.2, 0.1, -0.3, 0.2, -0.1])
    leaking = [level + position / 6 + next(noise) for position in range(60)]
    assert titles(memory(leaking)) == ["worker MiB"]
    assert titles(memory([value - position / 6 for position, value in enumerate(leaking)])) == []


def test_a_leak_in_a_process_that_settles_is_found() -> None:
    assert titles(memory(SETTLING)) == []
    assert titles(memory([value + position / 6 for position, value in enumerate(SETTLING)])) == ["worker MiB"]


def test_files_that_keep_their_largest_size_are_flat_and_files_that_grow_on_are_not() -> None:
    assert titles([window(**{"store-mib": min(position, 40.0)}) for position in range(60)]) == []
    assert titles([window(**{"store-mib": 100.0 + position}) for position in range(60)]) == ["store MiB"]


def test_a_leak_that_grows_in_steps_is_found() -> None:
    assert titles(memory([100.0 + position // 6 for position in range(60)])) == ["worker MiB"]


def test_a_short_run_finds_a_leak_too() -> None:
    assert titles(memory([100.0 + position / 3 for position in range(20)])) == ["worker MiB"]


@pytest.mark.slow
def test_a_worker_that_leaks_is_found() -> None:
    with new_run(quick=True) as run:
        windows = soak(run, "memory", rate=100, seconds=10, window=0.5, load="tests.benchmarks.leaking_load")
    assert "worker MiB" in defects(windows, "memory", 0.5)


def test_times_are_judged_in_windows_without_other_work_only() -> None:
    busy = [window(**{"others": 0.5, "start-p99": 100.0 + position}) for position in range(60)]
    assert titles(busy) == []
    assert "not judged, because the machine was busy or the run too short: jobs/s, start p50" in summary(busy)
    for each in busy[::2] + busy[1::4]:
        each["others"] = 0.05
    assert titles(busy) == ["start p99 ms"]
    assert "not judged" not in summary(busy)


def test_rows_of_postgresql_are_judged_once_it_removes_replies() -> None:
    """It keeps replies for ten minutes, so the number of rows grows for so long."""
    steady = 66
    grows_first = [window(rows=min(position, steady) * 10.0) for position in range(90)]
    assert titles(grows_first[:60], "sqlite") == ["rows"]
    assert titles(grows_first[:60], "postgres") == titles(grows_first, "postgres") == []
    assert "too short: rows, store MiB" in summary(grows_first[:60], "postgres")
    assert titles([window(rows=position * 10.0) for position in range(90)], "postgres") == ["rows"]


def test_memory_is_judged_on_a_busy_machine_too() -> None:
    busy = [window(**{"others": 1.0, "worker-mib": 100.0 + position / 6}) for position in range(60)]
    assert titles(busy) == ["worker MiB"]


def test_other_load_is_that_of_processes_outside_of_the_run(tmp_path: Path) -> None:
    """A server detaches itself: it belongs to the run by its working directory only."""
    run = tmp_path / "run"
    run.mkdir()
    from_outside, from_inside = OtherLoad(tmp_path / "other"), OtherLoad(run)
    spin = [sys.executable, "-c", "while True: pass"]
    detach = f"import subprocess; print(subprocess.Popen({spin!r}, stdout=subprocess.DEVNULL).pid)"
    pid = int(subprocess.check_output([sys.executable, "-c", detach], cwd=run))
    try:
        while processor_seconds(pid) < 0.2:
            block(0.01)
        assert from_outside.share() > from_inside.share()
    finally:
        os.kill(pid, signal.SIGKILL)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_jobs_that_are_not_done_are_a_defect() -> None:
    assert titles([window(), window(done=990.0), window()]) == ["jobs"]


def test_a_short_series_has_no_trend() -> None:
    assert trend([1.0, 2.0, 3.0]).growth == 0
    assert trend([]).deviations == 0


def test_the_table_has_some_twenty_lines() -> None:
    lines = table([window() for _ in range(360)], WINDOW).splitlines()
    assert len(lines) == 22
    assert lines[0].startswith("| minute | jobs/s | start p50 ms |")
    assert lines[-1].startswith("| 57.0 |")


def test_a_soak_measures_each_window() -> None:
    with new_run(quick=True) as run:
        windows = soak(run, "sqlite", rate=100, seconds=1, window=0.5)
    assert len(windows) == 2
    assert all(each["done"] == each["offered"] > 0 for each in windows)
    assert windows[0]["worker-mib"] > 0
    assert windows[1]["rows"] > 100
