"""Charts are well-formed and inside their frame for any numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from dayjob.dashboard import charts
from dayjob.inspect import Point


def hour(*done: int, pending: int = 0, known: bool = True) -> list[Point]:
    wait = float(pending) if known else None
    return [Point(number, each, pending, 0, 0, 0, known, wait) for number, each in enumerate(done)]


SERIES = {
    "none": [],
    "one": hour(0),
    "nothing": hour(*[0] * 60),
    "rising": hour(*range(60)),
    "huge": hour(*[10**9] * 60, pending=10**9),
    "with gaps": hour(1, 0, 1, pending=3),
    "unknown": hour(*[5] * 60, known=False),
}


@pytest.mark.parametrize("draw", [charts.throughput, charts.pending, charts.latency, charts.sparkline])
@pytest.mark.parametrize("name", SERIES)
def test_a_chart_is_well_formed_and_labelled(draw: Callable[[list[Point]], Markup], name: str) -> None:
    points = SERIES[name]
    drawn = ElementTree.fromstring(draw(points))
    assert drawn.get("role") == "img"
    assert drawn.get("aria-label")
    _, _, width, height = map(float, (drawn.get("viewBox") or "").split())
    for text in re.findall(r'points="([^"]*)"', draw(points)):
        for pair in text.split():
            x, y = map(float, pair.split(","))
            assert -0.1 <= x <= width + 0.1
            assert -0.1 <= y <= height + 0.1


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (0.3, 1), (1, 1), (3, 4), (7, 10), (10, 10), (11, 20), (950, 1000), (4100, 5000)],
)
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert charts._round_up(value) == top


def test_minutes_before_the_first_sample_have_no_line() -> None:
    assert "polyline" not in charts.pending(hour(*[0] * 60, pending=5, known=False))
    assert "polyline" in charts.pending(hour(*[0] * 60, pending=5))
