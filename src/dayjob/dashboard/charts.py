"""Charts as SVG with labels in HTML, drawn without a library. The style sheet sets the colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from dayjob.inspect import Point
from dayjob.inspect.json_fields import span

WIDTH, HEIGHT = 600, 120
"""The plot is stretched to its box. The labels are text beside it, so that they keep their size."""

SPARK_WIDTH, SPARK_HEIGHT = 120, 26

_RECT = Markup(
    '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
)


def throughput(points: Sequence[Point]) -> Markup:
    """Draw the jobs completed in each minute, as bars."""
    values = [float(point.done) for point in points]
    most = max(values, default=0)
    top = _round_up(most)
    step = WIDTH / max(len(values), 1)
    bars = Markup("").join(
        _RECT.format(
            "bar",
            number * step + step * 0.1,
            HEIGHT * (1 - value / top),
            step * 0.8,
            max(HEIGHT * value / top, 0.5),
            f"{_ago(number, len(values))}: {value:,.0f} completed",
        )
        for number, value in enumerate(values)
        if value
    )
    label = f"{sum(values):,.0f} jobs completed in {len(values)} minutes, at most {most:,.0f} per minute"
    return _chart(label, [_short(top * share) for share in _SHARES], bars, len(values))


def pending(points: Sequence[Point]) -> Markup:
    """Draw the pending jobs at the end of each minute."""
    values = [float(point.pending) if point.known else None for point in points]
    known = [value for value in values if value is not None]
    now, most = known[-1] if known else 0, max(known, default=0)
    label = f"{now:,.0f} jobs pending, at most {most:,.0f} in the last {len(values)} minutes"
    return _area(label, values, _round_up(most), _short, lambda value: f"{value:,.0f} pending")


def latency(points: Sequence[Point]) -> Markup:
    """Draw how long the first pending job had been due, in seconds."""
    values = [point.wait_seconds for point in points]
    known = [value for value in values if value is not None]
    now, most = known[-1] if known else 0, max(known, default=0)
    label = f"Oldest wait {span(now)}, at most {span(most)} in the last {len(values)} minutes"
    size, unit = next((each for each in _UNITS if most >= 2 * each[0]), (1, "s"))
    top = _round_up(most / size) * size
    return _area(label, values, top, lambda value: f"{value / size:.3g} {unit}", span)


def sparkline(points: Sequence[Point]) -> Markup:
    """Draw the jobs completed per minute, small."""
    values = [float(point.done) for point in points]
    step = SPARK_WIDTH / max(len(values) - 1, 1)
    scale = (SPARK_HEIGHT - 4) / (max(values, default=0) or 1)
    line = " ".join(
        f"{number * step:.1f},{SPARK_HEIGHT - 2 - value * scale:.1f}" for number, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">'
        '<polyline class="line" points="{}"/></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, f"{sum(values):,.0f} completed in the last hour", line)


_SHARES = (1, 0.5, 0)
"""The grid lines, from the top, as shares of the height."""

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def _area(
    label: str,
    values: Sequence[float | None],
    top: float,
    label_tick: Callable[[float], str],
    label_value: Callable[[float], str],
) -> Markup:
    step = WIDTH / max(len(values), 1)
    shapes = Markup("")
    run: list[tuple[float, float]] = []
    for number, value in enumerate([*values, None]):
        if value is not None:
            run += [(x * step, HEIGHT * (1 - value / top)) for x in (number, number + 1)]
        elif run:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            under = f"{run[0][0]:.1f},{HEIGHT} {line} {run[-1][0]:.1f},{HEIGHT}"
            shapes += Markup(
                '<polygon class="area" points="{}"/><polyline class="line" points="{}"/>'
            ).format(under, line)
            run = []
    shapes += Markup("").join(
        _RECT.format(
            "touch", number * step, 0, step, HEIGHT, f"{_ago(number, len(values))}: {label_value(value)}"
        )
        for number, value in enumerate(values)
        if value is not None
    )
    return _chart(label, [label_tick(top * share) for share in _SHARES], shapes, len(values))


def _chart(label: str, ticks: Sequence[str], shapes: Markup, minutes: int) -> Markup:
    grid = Markup("").join(
        Markup('<line class="grid" x1="0" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>').format(
            WIDTH, y=HEIGHT * (1 - share)
        )
        for share in _SHARES
    )
    times = (f"{minutes} min ago", f"{minutes // 2} min ago", "now")
    return Markup(
        '<div class="chart" role="img" aria-label="{}"><div class="ticks">{}</div>'
        '<svg class="plot" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}{}</svg>'
        '<div class="times">{}</div></div>'
    ).format(label, _spans(ticks), WIDTH, HEIGHT, grid, shapes, _spans(times))


def _spans(texts: Sequence[str]) -> Markup:
    return Markup("").join(Markup("<span>{}</span>").format(text) for text in texts)


def _ago(number: int, minutes: int) -> str:
    before = minutes - 1 - number
    return "this minute" if before == 0 else f"{before} min ago"


def _round_up(value: float) -> float:
    """Return a round number at or above the value, for the top of an axis."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > 1 and size > value:
        size /= 10
    return next((size * factor for factor in (1, 2, 4, 6, 8, 10) if size * factor >= value), size * 10)


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}" if value == int(value) else ""
