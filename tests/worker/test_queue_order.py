"""The order of a worker's queues: as given, by weights, or rotating over all."""

from __future__ import annotations

from collections import Counter

from dayjob import Broker
from dayjob.cli.worker.options import WorkerOptions
from dayjob.runtime.clock import SYSTEM
from dayjob.worker.fetcher import Fetcher, QueueOrder


def test_queues_without_weights_keep_their_order() -> None:
    order = QueueOrder(["b", "a"])
    assert [order.next() for _ in range(3)] == [("b", "a")] * 3


def test_weights_are_the_shares_of_first_places() -> None:
    order = QueueOrder(["critical", "default", "low"], {"critical": 5, "default": 2, "low": 1})
    firsts = [order.next()[0] for _ in range(80)]
    assert Counter(firsts) == {"critical": 50, "default": 20, "low": 10}
    assert "low" in firsts[:8]


def test_every_order_has_all_queues() -> None:
    order = QueueOrder(["a", "b"], {"a": 3, "b": 1})
    assert all(sorted(order.next()) == ["a", "b"] for _ in range(9))


async def test_a_worker_of_all_queues_rotates() -> None:
    async with Broker("memory://") as broker:
        for queue in ("a", "m", "z"):
            for _ in range(10):
                await broker.enqueue(queue)
        fetcher = Fetcher(broker, SYSTEM, QueueOrder(()), None, "w")
        first = [(await fetcher.fetch(2, 0))[0].queue for _ in range(6)]
    assert first == ["a", "m", "z", "a", "m", "z"]


def test_weights_of_the_command_line_are_parsed() -> None:
    def queues(*given: str) -> object:
        return WorkerOptions.weighted_queues.fget(type("Given", (), {"queues": given})())  # type: ignore[attr-defined]

    assert queues("critical:5", "a:b:2") == {"critical": 5, "a:b": 2}
    assert queues("critical:5", "low") == ("critical:5", "low")
    assert queues() == ()
