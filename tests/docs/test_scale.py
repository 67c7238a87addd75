"""The model in ``docs/scale.md`` follows from the constants of the code."""

from __future__ import annotations

import re
from pathlib import Path

from dayjob import BrokerConfig
from dayjob.broker.leader_election import renewal_of, term_of
from dayjob.duties import BEATS
from dayjob.engines.postgres import notifier
from dayjob.runtime.signals import WOKEN

TEXT = (Path(__file__).parents[2] / "docs" / "scale.md").read_text("utf-8")

DEAD_AFTER = 15


def row(name: str) -> list[float]:
    """Return the figures of the model's row for 300, 1,000 and 10,000 workers."""
    [line] = [line for line in TEXT.splitlines() if line.startswith(f"| {name} |")]
    return [float(re.sub(r"[^\d.]", "", cell)) for cell in line.split("|")[2:5]]


def test_the_model_follows_from_the_constants() -> None:
    assert BrokerConfig().dead_after == DEAD_AFTER
    sizes = row("workers, all idle")
    term = term_of(DEAD_AFTER)
    beats = BEATS / DEAD_AFTER
    reads = 1 / (term - renewal_of(term) / 2 + 1)  # The reads are spread over two seconds.
    looks = (1 + 1 / notifier._LOOKS_PER_CHECK) / notifier.CHECK
    assert row("PostgreSQL: transactions/s") == [round(size * (beats + reads + looks)) for size in sizes]
    assert row("of these, flushed heartbeats/s") == [size * beats for size in sizes]
    in_trees = [size * (beats / 8 + reads + looks) for size in sizes]
    assert row("PostgreSQL: transactions/s in trees of 8") == [round(each) for each in in_trees]
    assert row("of these, flushed heartbeats/s in trees of 8") == [size * beats / 8 for size in sizes]
    costs = [size * notifier.COST for size in sizes]
    assert row("PostgreSQL: time of one notification") == [round(cost * 1000) for cost in costs]
    limits = row("PostgreSQL: notifications/s of one busy process")
    for limit, cost in zip(limits, costs, strict=True):
        assert abs(limit - notifier.SHARE / cost) <= 0.5
    assert row("looks for one job, on average") == [WOKEN[-1][0]] * 3


def test_the_window_is_described() -> None:
    assert f"`listeners × {notifier.COST / notifier.SHARE * 1e6:.0f} µs`" in TEXT
    shortest, longest = notifier.SHORTEST_WINDOW * 1000, notifier.LONGEST_WINDOW * 1000
    assert f"{shortest:.0f} to {longest:.0f} ms: twice as long as" in TEXT
    assert f"With more than {notifier.LONGEST_WINDOW / (notifier.COST / notifier.SHARE):.0f}," in TEXT
