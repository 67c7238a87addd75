"""The output of commands: tables for people, JSON for programs, and screens that refresh.

All output passes through here, because texts of jobs are escaped here. The linter refuses ``click.echo``,
``click.confirm`` and ``rich.console.Console`` elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dayjob.inspect.json_fields import instant
from dayjob.model.names import printable
from dayjob.runtime.clock import SYSTEM

Answer = TypeVar("Answer")

WATCH_INTERVAL = 1.0

LINES = "\n\t"
"""The control characters of a text of several lines."""

_NOT_ASCII = re.compile(r"[^\0-~]")

INDENTED_BYTES = 256 * 1024
"""Bytes up to which a JSON document is indented."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
watch_option = click.option(
    "-w", "--watch", is_flag=True,
    help="Refresh every second until Ctrl-C. Without a terminal, print the table every second.",
)  # fmt: skip
limit_option = click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True,
    help="The maximum number of jobs.",
)  # fmt: skip
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")

STYLES = {
    "done": "green",
    "running": "cyan",
    "pending": "default",
    "scheduled": "blue",
    "limited": "magenta",
    "dead": "red",
    "cancelled": "yellow",
}

_UNLIMITED = 10_000
"""The width without a terminal, so that programs that read lines see whole values."""

_GAP = 2
"""Spaces between two columns."""

_SHORTEST_ID = 13
"""The least number of characters of an id: the milliseconds of its creation."""

_NARROWEST = 4


class Column(Struct, frozen=True):
    """A column of a table.

    A table that is too wide first drops columns, the one with the highest ``rank`` first; 0 is never dropped.
    Then it shortens cells, to ``least`` characters at the least: in the middle for names, at the end for
    texts, and ids to prefixes that are unique in the table.
    """

    name: str
    rank: int = 0
    least: int | None = None
    is_text: bool = False
    is_id: bool = False


ID = Column("id", is_id=True)


def console() -> Console:
    """Return the output. Its width is the terminal's, or ``COLUMNS``, else unlimited."""
    screen = Console(highlight=False, emoji=False)
    if screen.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return screen
    return Console(highlight=False, emoji=False, width=_UNLIMITED)


def print_json(value: Any) -> None:
    """Print one JSON document; keys keep their order. A large one is not indented.

    Indenting would multiply the size of a nested value by its depth.
    """
    data = msgspec.json.encode(value)
    text = (msgspec.json.format(data, indent=2) if len(data) <= INDENTED_BYTES else data).decode()
    click.echo(_NOT_ASCII.sub(_json_character, text))


def _json_character(found: re.Match[str]) -> str:
    """Return a character of a JSON text, escaped for JSON if a terminal would not show it."""
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], *, title: str | None = None, empty: str = ""
) -> RenderableType:
    """Return a table that fits the output: one line a row. Cells are literal text, never markup.

    Without rows, return the text ``empty``.
    """
    if not rows:
        return Text(empty)
    cells = [[_cell(value) for value in row] for row in rows]
    result = Table(
        title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False,
        show_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    widths = fitting_widths(columns, cells, console().width)
    for number, width in widths.items():
        numeric = all(_is_number(row[number]) for row in rows)
        result.add_column(
            columns[number].name, justify="right" if numeric else "left", no_wrap=True, min_width=width,
            max_width=width,
        )  # fmt: skip
    for row in cells:
        result.add_row(
            *(
                Text(shortened(row[number], width, columns[number]), STYLES.get(row[number], ""))
                for number, width in widths.items()
            )
        )
    return result


def fitting_widths(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], available: int
) -> dict[int, int]:
    """Return the widths of the columns that are shown, by their numbers."""
    whole, least = [], []
    for number, column in enumerate(columns):
        texts = [row[number] for row in rows]
        size = max(map(cell_len, (column.name, *texts)))
        shortest = _unique_prefix(texts) if column.is_id else size if column.least is None else column.least
        whole.append(size)
        least.append(min(size, max(shortest, cell_len(column.name))))
    shown = list(range(len(columns)))

    def room() -> int:
        return available - sum(least[number] for number in shown) - _GAP * (len(shown) - 1)

    while room() < 0:
        last = max(shown, key=lambda number: columns[number].rank)
        if columns[last].rank == 0:
            break
        shown.remove(last)
    while room() < 0 and max(least[number] for number in shown) > _NARROWEST:  # A very narrow terminal.
        least[max(shown, key=least.__getitem__)] -= 1
    widths = {number: least[number] for number in shown}
    left = max(room(), 0)
    for number in sorted(shown, key=lambda number: (columns[number].is_id, columns[number].rank)):
        more = whole[number] - least[number]
        if columns[number].is_id and more > left:
            continue  # A part of the rest of an id is of no use.
        widths[number] += min(more, left)
        left -= min(more, left)
    return widths


def _unique_prefix(ids: Sequence[str]) -> int:
    """Return the length of the shortest prefixes that differ, and that do not end with a dash."""
    length, different = _SHORTEST_ID, len(set(ids))
    while len({id[:length] for id in ids}) < different or any(id[length - 1 : length] == "-" for id in ids):
        length += 1
    return length


def shortened(text: str, width: int, column: Column) -> str:
    """Return the text in that many cells at most, with an ellipsis for the part that is left out."""
    if cell_len(text) <= width:
        return text
    if column.is_id:
        return text[:width]
    tail = 0 if column.is_text else (width - 1) * 2 // 3
    end = set_cell_size(text[::-1], tail)[::-1] if tail else ""
    return f"{set_cell_size(text, width - 1 - tail)}…{end}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return printable(str(value).replace("\n", " "))


def print_line(text: str, style: str = "", end: str = "\n") -> None:
    """Print a line that the terminal wraps, so that no name is broken in a copy of it."""
    console().print(Text(printable(text), style), soft_wrap=True, end=end)


def print_text(text: str, *, end: str = "\n", err: bool = False) -> None:
    """Print a text of several lines, as a whole."""
    click.echo(f"{printable(text, keep=LINES)}{end}", err=err, nl=False)


async def show(
    read: Callable[[], Awaitable[Answer]], fields: Callable[[Answer], Any],
    render: Callable[[Answer], RenderableType], as_json: bool, watch: bool,
) -> None:  # fmt: skip
    """Print what is read, as its JSON ``fields`` or rendered.

    With ``watch``, refresh the rendered output until interrupted, or print it again in a pipe.
    """
    if as_json:
        print_json(fields(await read()))
        return
    screen = console()
    if not watch:
        screen.print(render(await read()))
        return
    if not screen.is_terminal:
        while True:
            screen.print(instant(SYSTEM.now()))
            screen.print(render(await read()), "")
            await SYSTEM.wait(asyncio.Event(), WATCH_INTERVAL)
    with Live(render(await read()), console=screen, auto_refresh=False, screen=True) as live:
        while True:
            await SYSTEM.wait(asyncio.Event(), WATCH_INTERVAL)
            live.update(render(await read()), refresh=True)


def confirm(question: str, yes: bool) -> None:
    """Ask the question, unless ``--yes`` answers it. Abort the command on "no"."""
    if not yes:
        click.confirm(printable(question), abort=True)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal. Yield the function that sets the number done."""
    screen = console()
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


def parse_time(text: str) -> datetime:
    """Parse an ISO time. Without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is not a time: write it like 2026-11-15T14:30:00+01:00") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
