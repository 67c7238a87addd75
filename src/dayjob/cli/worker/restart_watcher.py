"""Stops a supervised worker that must be replaced: its memory exceeds the limit, or its code changed.

Each check runs in a thread, so that a handler that blocks the event loop does not delay it.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

from dayjob.runtime.clock import block
from dayjob.runtime.process import MEBIBYTE, rss
from dayjob.worker import Worker

_log = logging.getLogger("dayjob.worker")

RSS_INTERVAL = 1.0
RELOAD_INTERVAL = 0.5

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv"}


class RestartWatcher:
    """Stops the worker when it must be replaced, and sets ``replace``."""

    def __init__(self, worker: Worker, *, max_rss: int | None, reload: bool) -> None:
        self.replace = False
        self._worker = worker
        self._max_rss = max_rss
        self._files = SourceFiles() if reload else None

    def start(self) -> None:
        if self._max_rss is not None:
            threading.Thread(target=self._watch_memory, name="dayjob-memory", daemon=True).start()
        if self._files is not None:
            threading.Thread(target=self._watch_files, name="dayjob-reload", daemon=True).start()

    def _watch_memory(self) -> None:
        assert self._max_rss is not None
        while (used := rss() // MEBIBYTE) <= self._max_rss:
            block(RSS_INTERVAL)
        _log.info(
            "worker %s uses %d MiB, over --max-rss %d: it drains and is replaced",
            self._worker.name,
            used,
            self._max_rss,
        )
        self.replace = True
        self._worker.stop()

    def _watch_files(self) -> None:
        assert self._files is not None
        changed = self._files.wait_for_change()
        _log.info("%s changed: running jobs are released for the new code", changed)
        self.replace = True
        self._worker.stop_now()


class SourceFiles:
    """The source files of the project's imported modules, with their modification times when first seen.

    With a folder, also all source files below it: an import that failed leaves its modules unknown.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._seen: dict[Path, int | None] = {}
        self.changed()

    def wait_for_change(self) -> Path:
        while (path := self.changed()) is None:
            block(RELOAD_INTERVAL)
        return path

    def changed(self) -> Path | None:
        """Return a file that was written or removed since it was first seen."""
        paths: set[Path] = {*_imported(), *self._seen}
        if self._folder is not None:
            paths.update(_below(self._folder))
        for path in paths:
            modified = _modified(path)
            if self._seen.setdefault(path, modified) != modified:
                return path
        return None


def _imported() -> Iterator[Path]:
    paths = sysconfig.get_paths()
    folders = [*(paths[kind] for kind in _INSTALLED), str(Path(__file__).parents[1])]
    installed = tuple(f"{folder}{os.sep}" for folder in folders)
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(installed):
            yield Path(file)


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        yield from (Path(root, name) for name in names if name.endswith(".py"))


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
