"""Progress on stderr. It draws only when told of an advance, so it never runs beside a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_PAUSE = 0.1


class Screen:
    """One bar per stage on a terminal; elsewhere one line."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False)

    @contextmanager
    def stage(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """A stage of ``total`` steps; call what it gives with the steps done since the last call."""
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)
            yield lambda steps: None
            return
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=self._console, transient=True, auto_refresh=False) as progress:
            task = progress.add_task(text, total=total)
            progress.refresh()
            drawn = time.monotonic()

            def advance(steps: int) -> None:
                nonlocal drawn
                progress.advance(task, steps)
                if time.monotonic() - drawn >= _PAUSE:
                    progress.refresh()
                    drawn = time.monotonic()

            yield advance
