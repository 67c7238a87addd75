"""Charts as SVG, drawn from numbers without a library. The style sheet sets the colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from dayjob.inspect import Point

WIDTH, HEIGHT = 640, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 14, 24
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

SPARK_WIDTH, SPARK_HEIGHT = 120, 26

_TICK = Markup(
    '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
    '<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
)
_BAR = Markup(
    '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
)


def throughput(points: Sequence[Point]) -> Markup:
    """Draw the jobs completed in each minute, as bars."""
    values = [float(point.done) for point in points]
    most = max(values, default=0)
    top = _round_up(most)
    step = _PLOT_WIDTH / max(len(values), 1)
    bars = Markup("").join(
        _BAR.format(
            _LEFT + number * step + step * 0.1,
            _TOP + _PLOT_HEIGHT * (1 - value / top),
            step * 0.8,
            max(_PLOT_HEIGHT * value / top, 0.5),
            f"{_ago(number, len(values))}: {value:,.0f} completed",
        )
        for number, value in enumerate(values)
        if value
    )
    label = f"{sum(values):,.0f} jobs completed in {len(values)} minutes, at most {most:,.0f} per minute"
    return _chart(label, top, bars, len(values))


def pending(points: Sequence[Point]) -> Markup:
    """Draw the pending jobs at the end of each minute."""
    values = [float(point.pending) if point.known else None for point in points]
    known = [value for value in values if value is not None]
    now, most = known[-1] if known else 0, max(known, default=0)
    label = f"{now:,.0f} jobs pending, at most {most:,.0f} in the last {len(values)} minutes"
    return _area(label, values, lambda value: f"{value:,.0f} pending")


def latency(points: Sequence[Point]) -> Markup:
    """Draw how long the first pending job had been due, in seconds."""
    values = [point.wait_seconds for point in points]
    known = [value for value in values if value is not None]
    now, most = known[-1] if known else 0, max(known, default=0)
    label = f"Latency {now:,.1f} seconds, at most {most:,.1f} in the last {len(values)} minutes"
    return _area(label, values, lambda value: f"{value:,.1f} s")


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


def _area(label: str, values: Sequence[float | None], label_value: Callable[[float], str]) -> Markup:
    top = _round_up(max((value for value in values if value is not None), default=0))
    step = _PLOT_WIDTH / max(len(values), 1)
    base = _TOP + _PLOT_HEIGHT
    shapes = Markup("")
    run: list[tuple[float, float]] = []
    for number, value in enumerate([*values, None]):
        if value is not None:
            run.append((_LEFT + (number + 0.5) * step, _TOP + _PLOT_HEIGHT * (1 - value / top)))
        elif run:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            under = f"{run[0][0]:.1f},{base} {line} {run[-1][0]:.1f},{base}"
            shapes += Markup(
                '<polygon class="area" points="{}"/><polyline class="line" points="{}"/>'
            ).format(under, line)
            if len(run) == 1:  # a line of one point is invisible
                shapes += Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(*run[0])
            run = []
    shapes += Markup("").join(
        Markup(
            '<rect class="touch" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>'
        ).format(
            _LEFT + number * step,
            _TOP,
            step,
            _PLOT_HEIGHT,
            f"{_ago(number, len(values))}: {label_value(value)}",
        )
        for number, value in enumerate(values)
        if value is not None
    )
    return _chart(label, top, shapes, len(values))


def _chart(label: str, top: float, shapes: Markup, minutes: int) -> Markup:
    grid = Markup("").join(
        _TICK.format(_LEFT, WIDTH - _RIGHT, y, y, _LEFT - 6, y + 4, _short(top * share))
        for share in (0, 0.5, 1)
        for y in (_TOP + _PLOT_HEIGHT * (1 - share),)
    )
    times = Markup("").join(
        Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            _LEFT + _PLOT_WIDTH * share, HEIGHT - 6, anchor, text
        )
        for share, anchor, text in (
            (0, "start", f"−{minutes} min"),
            (0.5, "middle", f"−{minutes // 2} min"),
            (1, "end", "now"),
        )
    )
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>').format(
        WIDTH, HEIGHT, label, grid, shapes, times
    )


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
    return next((size * factor for factor in (1, 2, 4, 5, 10) if size * factor >= value), size * 10)


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
