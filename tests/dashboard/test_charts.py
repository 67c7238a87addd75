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
    plot = drawn if drawn.tag == "svg" else drawn.find("svg")
    assert plot is not None
    _, _, width, height = map(float, (plot.get("viewBox") or "").split())
    for text in re.findall(r'points="([^"]*)"', draw(points)):
        for pair in text.split():
            x, y = map(float, pair.split(","))
            assert -0.1 <= x <= width + 0.1
            assert -0.1 <= y <= height + 0.1


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (0.3, 1), (1, 1), (3, 4), (7, 8), (9, 10), (10, 10), (11, 20), (950, 1000), (4100, 6000)],
)
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert charts._round_up(value) == top


def test_minutes_before_the_first_sample_have_no_line() -> None:
    assert "polyline" not in charts.pending(hour(*[0] * 60, pending=5, known=False))
    assert "polyline" in charts.pending(hour(*[0] * 60, pending=5))


def labels(drawn: Markup, group: str) -> list[str | None]:
    return [each.text for each in ElementTree.fromstring(drawn).findall(f"div[@class='{group}']/span")]


def test_labels_are_text_outside_the_stretched_plot_with_units() -> None:
    points = hour(*[1200] * 60, pending=300)
    for draw in (charts.throughput, charts.pending, charts.latency):
        assert "<text" not in draw(points)
        assert labels(draw(points), "times") == ["60 min ago", "30 min ago", "now"]
    assert labels(charts.throughput(points), "ticks") == ["2k", "1k", "0"]
    assert labels(charts.latency(points), "ticks") == ["6 min", "3 min", "0 min"]
    assert labels(charts.latency(hour(*[0] * 60, pending=45)), "ticks") == ["60 s", "30 s", "0 s"]
    assert labels(charts.throughput(hour(1)), "ticks") == ["1", None, "0"]
