"""Resource use of a worker: memory does not grow with the jobs, and an idle worker uses no CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.storages.sqlite import sqlite_url

MEBIBYTE = 1024 * 1024


def outcome(program: str, *arguments: str) -> float:
    """Return the number that a program prints last."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "PYTHONPATH": "src"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_jobs_done() -> None:
    grown = outcome(
        """
        import asyncio, os
        from dayjob import App, BrokerConfig, Retention, Worker

        app = App("memory://", config=BrokerConfig(retention=Retention(done=0)))

        @app.task
        async def work(n: int, text: str) -> str:
            return text

        def rss():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        async def main():
            worker, first = Worker(app), 0
            async with app:
                for part in range(6):
                    for _ in range(5):
                        await work.aenqueue_many([(n, "x" * 100) for n in range(1000)])
                        await worker.run_until_idle()
                    if part == 1:
                        first = rss()
            assert worker.done == 30_000, worker.done
            print(rss() - first)

        asyncio.run(main())
        """
    )
    assert grown < 20 * MEBIBYTE, f"{grown / MEBIBYTE:.1f} MiB"


@pytest.mark.slow
def test_an_idle_worker_costs_less_than_a_hundredth_of_a_core(tmp_path: Path) -> None:
    """Measured in its best second: other processes only add to the figure, and rare duties may add too."""
    share = outcome(
        """
        import asyncio, sys, time
        from dayjob import App, Worker
        from dayjob.runtime.clock import SYSTEM

        app = App(sys.argv[1])

        @app.task
        async def work() -> None:
            return

        async def share_of_a_second():
            began, used = time.perf_counter(), time.process_time()
            await SYSTEM.wait(asyncio.Event(), 1)
            return (time.process_time() - used) / (time.perf_counter() - began)

        async def main():
            worker = Worker(app)
            running = asyncio.create_task(worker.run())
            await (await work.aenqueue()).aresult(10)
            shares = [await share_of_a_second() for _ in range(6)]
            print(min(shares))
            worker.stop()
            await running

        asyncio.run(main())
        """,
        sqlite_url(tmp_path),
    )
    assert share < 0.01, f"{share:.2%}"
