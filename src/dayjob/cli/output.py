"""The output of commands: tables for people, JSON for programs, and screens that refresh."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from dayjob.inspect.json_fields import span
from dayjob.model.durations import SECOND, to_datetime
from dayjob.runtime.clock import SYSTEM

WATCH_INTERVAL = 1.0

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
watch_option = click.option(
    "-w", "--watch", is_flag=True, help="Refresh every second until Ctrl-C. For terminals."
)

STYLES = {
    "done": "green",
    "running": "cyan",
    "pending": "default",
    "scheduled": "blue",
    "dead": "red",
    "cancelled": "yellow",
}


_PIPE_WIDTH = 200
"""The width without a terminal, so that programs that read lines see no wrapped ones."""


def console() -> Console:
    screen = Console(highlight=False, emoji=False)
    return screen if screen.is_terminal else Console(highlight=False, emoji=False, width=_PIPE_WIDTH)


def print_json(value: Any) -> None:
    """Print one JSON document, indented; keys keep their order."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table. Numbers are right-aligned. Cells are literal text, never markup."""
    result = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        numeric = bool(rows) and all(_is_number(row[number]) for row in rows)
        result.add_column(
            name, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric or name == "id"
        )
    for row in rows:
        result.add_row(*(_cell(value) for value in row))
    return result


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
    text = escape(printable(str(value)))
    style = STYLES.get(text)
    return f"[{style}]{text}[/{style}]" if style else text


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that it can't change the terminal."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def instant(micros: int | None) -> str | None:
    return None if micros is None else f"{to_datetime(micros):%Y-%m-%d %H:%M:%S}"


def ago(micros: int | None, now: int | None = None) -> str | None:
    """Return the time since then, or until then, with two units at most."""
    if micros is None:
        return None
    seconds = ((SYSTEM.now() if now is None else now) - micros) / SECOND
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


async def show(render: Callable[[], Awaitable[RenderableType]], watch: bool) -> None:
    """Print the rendered output once, or refresh it until interrupted."""
    if not watch:
        console().print(await render())
        return
    with Live(await render(), console=console(), auto_refresh=False, screen=console().is_terminal) as live:
        while True:
            await SYSTEM.wait(asyncio.Event(), WATCH_INTERVAL)
            live.update(await render(), refresh=True)


def parse_time(text: str) -> datetime:
    """Parse an ISO time. Without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is not a time: write it like 2026-11-15T14:30:00+01:00") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
