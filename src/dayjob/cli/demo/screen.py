"""The output of the demo: lines, a progress bar on a terminal, and the table of the audit."""

from __future__ import annotations

from typing import Self

from rich.console import Console  # noqa: TID251 - the texts are the demo's own
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dayjob.cli.demo.audit import Audit, Row


class Screen:
    """Lines are plain without a terminal, and ASCII only, so that any encoding can print them."""

    def __init__(self) -> None:
        self._console = Console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[details]}"),
            console=self._console,
            disable=not self._console.is_terminal or self._console.is_dumb_terminal,
        )
        self._bar = self._progress.add_task("jobs", total=None, details="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def progress(self, ended: int, total: int, details: str) -> None:
        self._progress.update(self._bar, completed=ended, total=total, details=details)

    def show(self, audit: Audit) -> None:
        table = Table(title="Jobs by queue" if audit.problems else "Every job accounted for")
        table.add_column("queue")
        for heading in ("enqueued", "= done", "+ dead", "+ cancelled", "+ left"):
            table.add_column(heading, justify="right")
        table.add_column("adds up", justify="center")
        for row in audit.rows:
            table.add_row(*_cells(row))
        table.add_section()
        table.add_row(*_cells(audit.total), style="bold")
        self._console.print(table)
        self.print(f"total: {audit.total}")
        if audit.problems:
            self.print("Problems:")
            for problem in audit.problems:
                self.print(f"- {problem}")


def _cells(row: Row) -> list[str]:
    numbers = (row.enqueued, row.done, row.dead, row.cancelled, row.left)
    return [row.name, *(f"{number:,}" for number in numbers), "yes" if row.adds_up else "NO"]
