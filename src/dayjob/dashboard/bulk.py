"""Bulk operations: they outlive the request that started them, and the pages show their progress."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key

_log = logging.getLogger("dayjob.dashboard")

Work = Callable[["BulkOperation"], Awaitable[int]]

MAX_RUNNING = 4
"""How many operations may run at once."""

RESPONSE_WAIT = 1.0
"""Seconds that a request waits for its operation before it answers that the operation is in progress."""

STOPPED = "stopped by a user"

_REMEMBERED = 10


class TooManyOperations(Exception):
    """``MAX_RUNNING`` operations are running."""


class BulkOperation:
    """One operation, with the number of jobs processed so far and in total."""

    def __init__(self, name: str) -> None:
        self.id = new_key().hex()
        self.name = name
        self.done = 0
        self.total: int | None = None
        """None until the jobs are counted."""
        self.ended = asyncio.Event()
        self.problem: str | None = None

    def on_progress(self, done: int) -> None:
        self.done = done

    @property
    def status(self) -> str:
        """The progress or the result as text."""
        done = f"{self.done:,}"
        if self.problem is not None:
            return f"stopped after {done} jobs: {self.problem}"
        if self.ended.is_set():
            return f"{done} jobs"
        return "counting the jobs" if self.total is None else f"{done} of {max(self.total, self.done):,} jobs"

    @property
    def share(self) -> float:
        return 1.0 if self.ended.is_set() else min(self.done / self.total, 1.0) if self.total else 0.0


class BulkOperations:
    """Starts operations, and stores the latest that ended."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[None], BulkOperation] = {}
        self._latest: deque[BulkOperation] = deque(maxlen=_REMEMBERED)

    @property
    def running(self) -> list[BulkOperation]:
        return list(self._running.values())

    @property
    def latest(self) -> list[BulkOperation]:
        """The operations that ended, the latest first."""
        return list(reversed(self._latest))

    @property
    def failed(self) -> list[BulkOperation]:
        return [each for each in self._latest if each.problem not in (None, STOPPED)]

    async def stop_one(self, id: str) -> bool:
        """Stop a running operation. The jobs that it has changed stay changed. False if it is not running."""
        tasks = [task for task, operation in self._running.items() if operation.id == id]
        for task in tasks:
            task.cancel(STOPPED)
        await asyncio.gather(*tasks, return_exceptions=True)
        return bool(tasks)

    async def start(self, name: str, work: Work, on_end: Callable[[BulkOperation], None]) -> BulkOperation:
        """Start the operation, and wait for its end up to ``RESPONSE_WAIT``. Its end calls ``on_end``."""
        if len(self._running) >= MAX_RUNNING:
            raise TooManyOperations
        operation = BulkOperation(name)
        task = asyncio.ensure_future(self._run(operation, work, on_end))
        self._running[task] = operation
        task.add_done_callback(self._running.pop)
        await SYSTEM.wait(operation.ended, RESPONSE_WAIT)
        return operation

    async def _run(
        self, operation: BulkOperation, work: Work, on_end: Callable[[BulkOperation], None]
    ) -> None:
        try:
            operation.done = await work(operation)
        except asyncio.CancelledError as error:
            operation.problem = STOPPED if STOPPED in error.args else "the dashboard was stopped"
            raise
        except Exception as error:
            operation.problem = f"{type(error).__name__}: {error}"
            _log.warning("%s failed after %d jobs: %s", operation.name, operation.done, operation.problem)
        finally:
            self._latest.append(operation)
            operation.ended.set()
            on_end(operation)

    async def stop(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
