"""One side of an offered load: ``python -m benchmarks.load KIND URL NUMBER LIBRARY``.

``produce`` enqueues at the times that its line of input lists. ``work`` runs a worker until NUMBER jobs have
passed, at the latest until the time in its line of input. ``both`` does both in one process. ``producers``
runs a hundred producers that each await their enqueues, for NUMBER seconds. Each prints a line of JSON.

A driver of a library has two contexts, and ``install(url)`` if it has tables to create. ``producing(url)``
yields a function that enqueues a job. ``working(url, started, settled)`` runs a worker. The worker calls
``started`` at the start of each handler and, where the library reports it, ``settled`` after the commit of
each outcome. dayjob's yields such a function too.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import msgspec

from benchmarks.child import READY, Answer, run
from benchmarks.open_loop import GRACE, Passed, Put, produce_at
from benchmarks.results import percentile
from dayjob import App, BrokerConfig, Retention, Worker
from dayjob.events import Event
from dayjob.runtime.process import MEBIBYTE, rss
from dayjob.worker.process_memory import collect_less_often

Record = Callable[[float], None]
"""Records that the job with this stamp has reached a point."""

PRODUCERS = 100

_DAYJOB = {"dayjob": None, "dayjob-tuned": BrokerConfig(retention=Retention(done=0))}
"""The settings of dayjob: as it comes, and without done jobs that are kept, like most of the peers."""


class Dayjob:
    def __init__(self, config: BrokerConfig | None) -> None:
        self._config = config

    @asynccontextmanager
    async def producing(self, url: str) -> AsyncIterator[Put]:
        async with self._app(url, lambda stamp: None) as app:
            await app.broker.stats("default")
            yield app.tasks["wait"].aenqueue

    @asynccontextmanager
    async def working(self, url: str, started: Record, settled: Record) -> AsyncIterator[Put]:
        app = self._app(url, started)

        async def record(event: Event) -> None:
            assert event.job is not None
            settled(msgspec.json.decode(event.job.payload)["stamp"])

        app.on("job.succeeded")(record)
        async with app, Worker(app):
            yield app.tasks["wait"].aenqueue

    def _app(self, url: str, started: Record) -> App:
        async def wait(stamp: float) -> None:
            started(stamp)

        app = App(url, config=self._config)
        app.task(name="wait")(wait)
        return app


def _driver(library: str) -> Any:
    if library in _DAYJOB:
        return Dayjob(_DAYJOB[library])
    return import_module(f"benchmarks.peers.{library}")


async def _install(library: str, url: str) -> None:
    """Create the tables of a library that does not create them by itself."""
    if install := getattr(_driver(library), "install", None):
        await install(url)


async def line() -> list[float]:
    """Return the numbers of the next line of input, none at its end."""
    return [float(number) for number in (await asyncio.to_thread(sys.stdin.readline)).split()]


class Recorder:
    """The jobs that have started and, where the library reports it, those that are settled."""

    def __init__(self) -> None:
        self._started: list[Passed] = []
        self._settled: list[Passed] = []

    def started(self, stamp: float) -> None:
        self._started.append((stamp, time.perf_counter()))

    def settled(self, stamp: float) -> None:
        self._settled.append((stamp, time.perf_counter()))

    async def until_passed(self, jobs: int, end: float) -> None:
        """Wait until that many jobs have passed, or for the end."""
        while time.perf_counter() < end and not self._passed(jobs):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def _passed(self, jobs: int) -> bool:
        return len(self._started) >= jobs and (not self._settled or len(self._settled) >= jobs)

    def take(self) -> dict[str, list[Passed]]:
        """Return the jobs so far, and start anew."""
        taken = {"started": self._started, "settled": self._settled}
        self._started, self._settled = [], []
        return taken

    def answer(self) -> dict[str, Any]:
        return {**self.take(), "worker-mib": rss() / MEBIBYTE}


async def work(url: str, jobs: int, library: str) -> dict[str, Any]:
    recorder = Recorder()
    await _install(library, url)
    async with _driver(library).working(url, recorder.started, recorder.settled):
        print(READY, flush=True)
        (end,) = await line()
        await recorder.until_passed(jobs, end)
    return recorder.answer()


async def produce(url: str, _: int, library: str) -> Answer:
    async with _driver(library).producing(url) as put:
        print(READY, flush=True)
        return await _produced(put) | {"producer-mib": rss() / MEBIBYTE}


async def _produced(put: Put) -> Answer:
    took = await produce_at(put, await line())
    return {"enqueue-p50": percentile(took, 50), "enqueue-p99": percentile(took, 99)}


async def both(url: str, jobs: int, library: str) -> dict[str, Any]:
    recorder = Recorder()
    async with _driver(library).working(url, recorder.started, recorder.settled) as put:
        print(READY, flush=True)
        produced = await _produced(put)
        await recorder.until_passed(jobs, time.perf_counter() + GRACE)
    return recorder.answer() | produced


async def producers(url: str, seconds: int, library: str) -> Answer:
    """Run producers that each await their enqueues. Return their total rate and the duration of a call."""
    took: list[float] = []
    await _install(library, url)
    async with _driver(library).producing(url) as put:
        await put(0.0)
        begin = time.perf_counter()
        end = begin + seconds

        async def producer() -> None:
            while (start := time.perf_counter()) < end:
                await put(start)
                took.append(time.perf_counter() - start)

        await asyncio.gather(*(producer() for _ in range(PRODUCERS)))
        rate = len(took) / (time.perf_counter() - begin)
    return {"rate": rate, "p50": percentile(took, 50), "p99": percentile(took, 99)}


KINDS: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "work": work,
    "produce": produce,
    "both": both,
    "producers": producers,
}

if __name__ == "__main__":
    if sys.argv[1] != "produce":
        collect_less_often()  # As ``dayjob worker`` does.
    run(KINDS, sys.argv[1:])
