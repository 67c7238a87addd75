"""The app that every host embeds, and the worker in a thread of the hosts without an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from threading import Thread

from dayjob import App, Worker
from dayjob.runtime.clock import block

SHUTDOWN_TIMEOUT = 1.0
"""The worker's, in seconds. No job of these tests ends by itself within it."""

LONG = 600.0


class Jobs:
    """An app on the storage. With ``finish``, no run waits: every job ends in its first run."""

    def __init__(self, url: str, *, finish: bool = False, attempts: int = 1) -> None:
        self.app = app = App(url)

        @app.task(name="quick", max_attempts=attempts)
        async def quick() -> None: ...

        @app.task(name="waits", max_attempts=attempts)
        async def waits() -> None:
            if not finish:
                await asyncio.Event().wait()

        @app.task(name="blocks", max_attempts=attempts)
        def blocks() -> None:
            if not finish:
                block(LONG)

        self.quick, self.waits, self.blocks = quick, waits, blocks

    def worker(self) -> Worker:
        return Worker(self.app, shutdown_timeout=SHUTDOWN_TIMEOUT)


def of_this_host() -> Jobs:
    return Jobs(os.environ["JOBS_URL"])


class WorkerThread:
    """A worker in a thread of its own, as ``docs/worker.md`` shows it."""

    def __init__(self, jobs: Jobs) -> None:
        self._worker = jobs.worker()
        self._thread = Thread(target=lambda: asyncio.run(self._worker.run()), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._worker.stop()
        self._thread.join()

    def stop_on_sigterm(self) -> None:
        """Stop the worker, then end the program, on SIGTERM. Call it in the main thread."""

        def stop(_number: int, _frame: object) -> None:
            self.stop()
            sys.exit(0)

        signal.signal(signal.SIGTERM, stop)
