"""A worker with and without registry and duties: ``python -m benchmarks.duty_drains KIND URL JOBS``.

Without: no entry in the worker registry, no heartbeat, no renewals, no duties, and so no schedules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks.child import Answer, Kind, drain_rate, run, starts, wait_until
from benchmarks.fleet import _fill, make_app, working
from dayjob import Recurring
from dayjob.broker.session import Session
from dayjob.worker import worker
from dayjob.worker.process_memory import collect_less_often
from dayjob.worker.registration import Registration

SCHEDULES = 10


class _NoHeartbeat:
    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


async def _nothing(*_: object) -> None:
    pass


def _switch_off() -> None:
    nothing: Callable[..., object] = _nothing
    for owner, name, value in (
        (worker, "Heartbeat", _NoHeartbeat),
        (Registration, "join", nothing),
        (Registration, "leave", nothing),
        (Session, "start_duties", lambda self: None),
    ):
        if not hasattr(owner, name):
            raise RuntimeError(f"{owner} has no {name} to switch off")
        setattr(owner, name, value)


async def with_all(url: str, jobs: int) -> Answer:
    async with make_app(url) as app:
        await _fill(app, jobs)
        for number in range(SCHEDULES):
            recurring = Recurring(f"schedule {number}", every=1, task="noop", args={"number": number})
            await app.broker.schedule(recurring)
        async with working(app):
            await wait_until(lambda: len(starts) >= jobs)
    del starts[jobs:]
    return drain_rate(jobs)


async def without(url: str, jobs: int) -> Answer:
    _switch_off()
    async with make_app(url) as app:
        await _fill(app, jobs)
        async with working(app):
            await wait_until(lambda: len(starts) >= jobs)
    return drain_rate(jobs)


KINDS: dict[str, Kind] = {"with": with_all, "without": without}

if __name__ == "__main__":
    collect_less_often()  # As ``dayjob worker`` does.
    run(KINDS, sys.argv[1:])
