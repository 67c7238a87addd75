"""What the demo shows: its story line by line, a progress bar on a terminal, and the sums at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dayjob.cli.demo_reckoning import Reckoning, Row


class Screen:
    """Lines are plain where there is no terminal. What is said holds ASCII only, for any encoding."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not self._console.is_terminal or self._console.is_dumb_terminal,
        )
        self._bar = self._progress.add_task("jobs", total=None, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def progress(self, ended: int, total: int, note: str) -> None:
        self._progress.update(self._bar, completed=ended, total=total, note=note)

    def show(self, reckoning: Reckoning) -> None:
        table = Table(title="Every job accounted for" if not reckoning.problems else "The sums")
        table.add_column("queue")
        for heading in ("enqueued", "= done", "+ dead", "+ cancelled", "+ left"):
            table.add_column(heading, justify="right")
        table.add_column("adds up", justify="center")
        for row in reckoning.rows:
            table.add_row(*_cells(row))
        table.add_section()
        table.add_row(*_cells(reckoning.total), style="bold")
        self._console.print(table)
        self.say(f"total: {reckoning.total}")
        if reckoning.problems:
            self.say("This is not as it should be:")
            for problem in reckoning.problems:
                self.say(f"- {problem}")


def _cells(row: Row) -> list[str]:
    numbers = (row.enqueued, row.done, row.dead, row.cancelled, row.left)
    return [row.name, *(f"{number:,}" for number in numbers), "yes" if row.adds_up else "NO"]
