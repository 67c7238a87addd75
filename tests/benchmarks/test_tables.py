"""The tables of the pages are those of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import LOG
from benchmarks.tables import PAGES, TABLES, last_rows, rounded_down, with_tables

RUN = """# Log

## 2026-01-01 10:00 UTC, aaaaaaa

| measure | engine | description | figures | result | bound |  |
| --- | --- | --- | --- | --- | --- | --- |
| redis-drain | redis | no-op coroutine tasks, defaults: done jobs kept, vs dramatiq | 9/s vs 1/s | 9× |  |  |
| wake-up | redis | enqueue to claim, same process, p50 | p99 1 ms | 1 ms |  |  |

## 2026-01-02 10:00 UTC, bbbbbbb

| measure | engine | description | figures | result | bound |  |
| --- | --- | --- | --- | --- | --- | --- |
| redis-drain | redis | no-op coroutine tasks, defaults: done jobs kept, vs dramatiq | 8/s vs 1/s | 8.19× |  |  |
| redis-drain | redis | no-op coroutine tasks, none kept, vs dramatiq | 12/s vs 1/s | 12× |  |  |
| offered-load | redis | defaults, 100/s: enqueue to start, p99 | p50 1.1 ms; settled p50 2 ms, p99 3 ms | 4.5 ms |  |  |
| offered-load | redis | defaults, 500/s: enqueue to start, p99 | p50 1.2 ms; enqueued p50 1 ms | 5 ms |  |  |
| offered-load | redis | defaults, 500/s: commands per job | 0.5 reads from a socket | 2.5  |  |  |
| offered-load | redis | defaults, 500/s: memory of the worker | 43 MiB of the producer | 42 MiB |  |  |
| offered-load | redis | TaskIQ 0.13.0, 100/s: falls behind, started |  | 77/s |  |  |
| offered-load | slatedb | S3 (moto), defaults, 100/s: enqueue to start, p99 | p50 90 ms; enqueued p50 1 ms | 200 ms |  |  |
| many-producers | redis | 100 producers that each await, defaults | p50 5 ms, p99 9 ms | 900/s |  |  |
| many-producers | redis | 100 producers that each await, defaults vs TaskIQ 0.13.0 | 900/s vs 30/s, p50 7 ms, p99 8 ms | 30× |  |  |
"""  # noqa: E501


def table(name: str) -> list[str]:
    page = f"<!-- table: {name} -->\nold\n<!-- end of table -->\n"
    return with_tables(page, last_rows(RUN)).splitlines()[1:-1]


def test_a_measure_counts_with_its_last_run_and_its_defaults() -> None:
    assert table("drained")[2:] == ["| Redis | Dramatiq 8.1× |"]


def test_the_latency_of_each_library_at_each_load() -> None:
    assert table("latency") == [
        "| on | library | 100 jobs/s | 500 jobs/s |",
        "| --- | --- | --- | --- |",
        "| Redis | dayjob, defaults | 1.1 / 4.5 | 1.2 / 5 |",
        "| Redis | TaskIQ 0.13.0 | 77/s at most |  |",
        "| object storage, S3 (moto) | dayjob, defaults | 90 / 200 |  |",
    ]


def test_the_readme_has_the_defaults_only() -> None:
    caption, _, _, _, *lines = table("latency-of-defaults")
    assert "with the defaults" in caption
    assert lines == ["| Redis | 1.1 / 4.5 | 1.2 / 5 |", "| object storage, S3 (moto) | 90 / 200 |  |"]


def test_the_cost_of_a_job() -> None:
    assert table("cost")[2:] == [
        "| Redis | dayjob, defaults | 2.5 commands, 0.5 reads from a socket | 42 MiB, 43 MiB |"
    ]


def test_a_hundred_producers() -> None:
    assert table("producers")[2:] == [
        "| Redis | dayjob, defaults | 900/s | p50 5 ms, p99 9 ms |",
        "| Redis | TaskIQ 0.13.0 | 30/s | p50 7 ms, p99 8 ms |",
    ]


@pytest.mark.parametrize(("ratio", "text"), [("2.69×", "2.6×"), ("70.7×", "70×"), ("1,204×", "1204×")])
def test_ratios_are_rounded_down(ratio: str, text: str) -> None:
    assert rounded_down(ratio) == text


def test_a_table_without_results_is_empty() -> None:
    page = "".join(f"<!-- table: {name} -->\n<!-- end of table -->\n" for name in TABLES)
    assert with_tables(page, []) == page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_have_the_tables_of_the_log(page: Path) -> None:
    """After a recorded run: ``python -m benchmarks.tables``."""
    text = page.read_text(encoding="utf-8")
    assert with_tables(text, last_rows(LOG.read_text(encoding="utf-8"))) == text
