"""The judgement of a soak: growth is found, noise, steps before the warm-up and single outliers are not."""

from __future__ import annotations

from itertools import cycle

from benchmarks.run import new_run
from benchmarks.soak import COLUMNS, WINDOW, Window, defects, soak, table, trend

_noise = cycle([0.97, 1.03, 0.99, 1.05, 0.95, 1.01, 1.04, 0.96])


def window(**values: float) -> Window:
    flat = {column.name: 100.0 * next(_noise) for column in COLUMNS}
    return flat | {"offered": 1000.0, "done": 1000.0} | values


def titles(windows: list[Window]) -> list[str]:
    return list(defects(windows))


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
