"""Bulk operations: they outlive the request that started them, and the pages show their progress."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from dayjob.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("dayjob.dashboard")

OnProgress = Callable[[int], None]
Work = Callable[[OnProgress], Awaitable[int]]

MAX_RUNNING = 4
"""How many operations may run at once."""

RESPONSE_WAIT = 1.0
"""Seconds that a request waits for its operation before it answers that the operation is in progress."""

_REMEMBERED = 5


class TooManyOperations(Exception):
    """``MAX_RUNNING`` operations are running."""


class BulkOperation:
    """One operation, with the number of jobs processed so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = 0
        self.ended = asyncio.Event()
        self.problem: str | None = None

    def on_progress(self, done: int) -> None:
        self.done = done


class BulkOperations:
    """Starts operations, and stores the latest that ended."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._running: dict[asyncio.Task[None], BulkOperation] = {}
        self._latest: deque[BulkOperation] = deque(maxlen=_REMEMBERED)

    @property
    def running(self) -> list[BulkOperation]:
        return list(self._running.values())

    @property
    def failed(self) -> list[BulkOperation]:
        return [operation for operation in self._latest if operation.problem is not None]

    async def start(self, name: str, work: Work, on_end: Callable[[BulkOperation], None]) -> BulkOperation:
        """Start the operation, and wait for its end up to ``RESPONSE_WAIT``. Its end calls ``on_end``."""
        if len(self._running) >= MAX_RUNNING:
            raise TooManyOperations
        operation = BulkOperation(name)
        task = asyncio.ensure_future(self._run(operation, work, on_end))
        self._running[task] = operation
        task.add_done_callback(self._running.pop)
        await self._clock.wait(operation.ended, RESPONSE_WAIT)
        return operation

    async def _run(
        self, operation: BulkOperation, work: Work, on_end: Callable[[BulkOperation], None]
    ) -> None:
        try:
            operation.done = await work(operation.on_progress)
        except asyncio.CancelledError:
            operation.problem = "the dashboard was stopped"
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
