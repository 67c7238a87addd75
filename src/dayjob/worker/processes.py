"""Child processes for tasks with ``pool="process"``."""

from __future__ import annotations

from dayjob.app import App
from dayjob.context import Context
from dayjob.settlement import Settlement
from dayjob.worker.outcome import AnyTask


class ProcessPool:
    def __init__(self, app: App, size: int) -> None:
        self._app = app
        self._size = size

    async def run(self, task: AnyTask, context: Context) -> Settlement:
        raise NotImplementedError

    async def close(self) -> None:
        return
