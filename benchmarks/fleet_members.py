"""Many workers in one process, each with its own app, connections and heartbeats:
``python -m benchmarks.fleet_members workers URL NUMBER FIRST``.

Each looks like a worker on its own machine. A line of input is answered with the counts so far.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

from msgspec.structs import replace

from benchmarks.child import READY, Answer, run, waits
from benchmarks.fleet import make_app
from dayjob import App, Worker
from dayjob.broker import leader_election
from dayjob.runtime.process import this_process
from dayjob.worker import heartbeat
from dayjob.worker.shared_beats import BeatGroup

STOP = "stop"

_BETWEEN_STARTS = 0.02

claims = 0


def _count_claims(app: App) -> None:
    """Count the claims that the engine gets: each is a look."""
    engine: Any = app.broker._engine
    claim = engine.claim

    async def counted(*arguments: Any, **options: Any) -> Any:
        global claims
        claims += 1
        return await claim(*arguments, **options)

    engine.claim = counted


def _on_own_machines(first: int) -> None:
    """Make the workers share no heartbeats, and no checks of the leader's process."""
    beats: Any = heartbeat
    beats.group_of = lambda broker: BeatGroup(broker.url)
    here, numbers = this_process(), itertools.count(first)
    elections: Any = leader_election
    elections.this_process = lambda: replace(here, host=f"machine {next(numbers)}")


async def workers(url: str, number: int, first: str) -> Answer:
    _on_own_machines(int(first))
    running: list[tuple[Worker, asyncio.Task[None]]] = []
    for member in range(number):
        worker = Worker(make_app(url), name=f"member-{first}-{member}")
        running.append((worker, asyncio.create_task(worker.run())))
        await asyncio.sleep(_BETWEEN_STARTS)
    while not all(worker.ready for worker, _ in running):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    for worker, _ in running:
        _count_claims(worker.app)
    print(READY, flush=True)
    while (await asyncio.to_thread(sys.stdin.readline)).strip() not in ("", STOP):
        print(json.dumps({"claims": claims, "waits": waits}), flush=True)
    for worker, _ in running:
        worker.stop_now()
    await asyncio.gather(*(task for _, task in running), return_exceptions=True)
    return {}


if __name__ == "__main__":
    run({"workers": workers}, sys.argv[1:])
