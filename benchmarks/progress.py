"""Progress on stderr. It draws only when ``advance`` is called, so it never runs during a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_PAUSE = 0.1


class ProgressDisplay:
    """One bar per stage on a terminal, one line elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False)

    @contextmanager
    def stage(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a stage of ``total`` steps. Yield a function that adds finished steps."""
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
