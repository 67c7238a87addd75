"""The page about reliability shows the figures of the log."""

from __future__ import annotations

from tests.chaos.chaos_run import Outcome
from tests.chaos.results import LOG, PAGE, filled, row, table


def test_the_page_has_the_table_of_the_log() -> None:
    page = PAGE.read_text()
    assert filled(page, LOG.read_text()) == page, "run python -m tests.chaos.results"


def test_the_runs_of_an_engine_are_added_up() -> None:
    log = "".join(
        row(
            Outcome(
                "sqlite", seed, 300, {"process killed": 4}, 1000, 1000, 900, 3, 5, 0, 0, recovery, 9.0, []
            )
        )
        for seed, recovery in ((7, 1.5), (8, 2.25))
    )
    assert list(table(log))[-1] == "| SQLite | 2 | 10 | 8 | 2,000 | 10 | 0 | 0 | 2.2 s | 9 s | 7, 8 |"
