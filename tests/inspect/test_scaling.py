"""How many workers a load needs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker
from dayjob.inspect import Inspector
from dayjob.inspect.scaling import TARGET, Load
from dayjob.testing import ManualClock
from tests.support.registered_workers import MEMBER

IN_TIME = Load(pending=100, limited=0, running=30, waiting_seconds=1, done_per_second=5, workers=3, slots=30)

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "no jobs": ({"pending": 0, "running": 0}, 0),
    "no jobs and no workers": ({"pending": 0, "running": 0, "workers": 0, "slots": 0}, 0),
    "only limited jobs": ({"pending": 0, "running": 0, "limited": 50}, 1),
    "limited jobs and no workers": ({"pending": 0, "running": 0, "limited": 50, "workers": 0, "slots": 0}, 1),
    "jobs and no workers": ({"workers": 0, "slots": 0}, 1),
    "all slots are full, in time": ({}, 3),
    "a third of the slots is full": ({"running": 10}, 1),
    "a job more than a third": ({"running": 11}, 2),
    "nothing runs yet": ({"running": 0}, 1),
    "nearly late": ({"running": 10, "waiting_seconds": TARGET * 0.6}, 3),
    "late: 100 pending jobs take 20 s": ({"waiting_seconds": 31}, 5),
    "late: 1000 pending jobs take 200 s": ({"waiting_seconds": 31, "pending": 1000}, 23),
    "late, and few slots are full": ({"waiting_seconds": 31, "running": 1}, 5),
    "late, and none ended lately": ({"waiting_seconds": 31, "done_per_second": 0}, 6),
    "late, and fewer jobs than workers": ({"waiting_seconds": 31, "pending": 1, "running": 1}, 2),
}


@pytest.mark.parametrize(("changes", "wanted"), CASES.values(), ids=CASES.keys())
def test_the_workers_wanted_follow_from_wait_rate_and_running_jobs(
    changes: dict[str, Any], wanted: int
) -> None:
    assert replace(IN_TIME, **changes).workers_wanted() == wanted


def test_a_shorter_target_needs_more_workers() -> None:
    load = replace(IN_TIME, waiting_seconds=31)
    assert [load.workers_wanted(target) for target in (60, 30, 10, 1)] == [3, 5, 9, 63]


async def test_the_load_is_that_of_the_queues_and_of_the_workers_that_serve_them() -> None:
    clock = ManualClock()
    async with Broker("memory://", clock=clock) as broker:
        for id, queues in (("w-1", ("a",)), ("w-2", ("b", "a")), ("w-3", ()), ("w-4", ("c",))):
            await broker.register(replace(MEMBER, id=id, queues=queues))
        for queue in ("a", "a", "b", "c"):
            await broker.enqueue(queue)
        await broker.claim("a", worker="w-1")
        clock.advance(7)
        inspector = Inspector(broker)
        assert await inspector.load(["a", "b"]) == Load(
            pending=2, limited=0, running=1, waiting_seconds=7, done_per_second=0, workers=3, slots=30
        )
        await broker.pause("b")
        load = await inspector.load(["b"])
        assert (load.pending, load.running, load.waiting_seconds, load.workers) == (0, 0, 0, 2)
        everything = await inspector.load()
        assert (everything.pending, everything.workers, everything.slots) == (2, 4, 40)
        views = {view.name: view for view in (await inspector.overview()).queues}
        assert {name: (view.workers, view.slots) for name, view in views.items()} == {
            "a": (3, 30), "b": (2, 20), "c": (2, 20)
        }  # fmt: skip
        assert views["c"].load == await inspector.load(["c"])
