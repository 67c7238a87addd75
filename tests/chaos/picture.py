"""A picture of a run: settlements per second over time, and below it each kind of fault in its own row."""

from __future__ import annotations

from collections import Counter
from html import escape

from tests.chaos.history import History

WIDTH, HEIGHT, LEFT, TOP, ROW = 1000, 220, 150, 30, 16
STYLE = 'font-family="sans-serif" font-size="11" fill="#333"'


def picture(history: History, title: str) -> str:
    """Return an SVG."""
    ends = [each.end for job in history.jobs.values() for each in job.settlements if each.applied]
    begin = min(ends)
    seconds = max(round(max(ends) - begin), 1)
    counts = Counter(int(at - begin) for at in ends)
    most = max(counts.values())
    kinds = sorted({fault.kind for fault in history.faults})
    total = HEIGHT + 30 + ROW * len(kinds)

    def x(at: float) -> float:
        return LEFT + min(max(at - begin, 0), seconds) / seconds * (WIDTH - LEFT - 30)

    def y(count: float) -> float:
        return HEIGHT - count / most * (HEIGHT - TOP)

    def text(left: float, top: float, words: str, anchor: str = "end") -> str:
        return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" {STYLE}>{escape(words)}</text>'

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{total}" fill="white"/>',
        text(LEFT, 16, title, "start"),
    ]
    lines += [text(LEFT - 6, y(count) + 4, str(count)) for count in (0, most // 2, most)]
    step = max(seconds // 600, 1) * 60 if seconds >= 120 else max(seconds // 5, 1)
    lines += [text(x(begin + at), HEIGHT + 16, f"{at} s", "middle") for at in range(0, seconds + 1, step)]
    points = " ".join(f"{x(begin + at):.1f},{y(counts[at]):.1f}" for at in range(seconds + 1))
    lines.append(f'<polyline points="{points}" fill="none" stroke="#1f618d" stroke-width="1.2"/>')
    for row, kind in enumerate(kinds):
        top = HEIGHT + 24 + ROW * row
        lines.append(text(LEFT - 6, top + 10, kind))
        lines.append(f'<path d="M{LEFT} {top + 6}H{WIDTH - 30}" stroke="#ddd"/>')
        for fault in history.faults:
            if fault.kind == kind:
                width = max(x(fault.until) - x(fault.at), 2.0)
                place = f'x="{x(fault.at):.1f}" y="{top + 1}" width="{width:.1f}" height="10"'
                lines.append(f'<rect {place} fill="{"#d35400" if fault.lossy else "#c0392b"}"/>')
    return "\n".join([*lines, "</svg>", ""])
