"""Claims that wait in this process, and the enqueues that serve them.

When a job is enqueued in the process in which a claim waits for it, the engine is asked to store the
job and to claim it in one commit: the waiting claim has it after one durable commit instead of two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from dayjob.engines.base import ClaimRequest, Insertion
from dayjob.model.job import Job
from dayjob.runtime.clock import Clock


class Offer:
    """A claim that waits. ``taking`` is set once an enqueue tries to serve it."""

    __slots__ = ("event", "request", "taking")

    def __init__(self, request: ClaimRequest, event: asyncio.Event) -> None:
        self.request = request
        self.event = event
        self.taking: asyncio.Future[list[Job]] | None = None


class Offers:
    """The waiting claims by queue. ``give_back`` gets the jobs whose claimer is gone."""

    def __init__(self, give_back: Callable[[list[Job]], None]) -> None:
        self._give_back = give_back
        self._by_queue: dict[str, dict[Offer, None]] = {}

    async def wait(
        self, request: ClaimRequest, event: asyncio.Event, clock: Clock, seconds: float
    ) -> list[Job]:
        """Wait for the event, for the time, or to be served; the jobs, if it was that."""
        offer = Offer(request, event)
        for queue, _ in request.queues:
            self._by_queue.setdefault(queue, {})[offer] = None
        try:
            await clock.wait(event, seconds)
            return [] if offer.taking is None else await asyncio.shield(offer.taking)
        except asyncio.CancelledError:
            if offer.taking is not None:
                offer.taking.add_done_callback(lambda taken: self._give_back(taken.result()))
            raise
        finally:
            self._withdraw(offer)

    def take(self, units: Iterable[tuple[Insertion, ...]]) -> list[Offer]:
        """The claims that jobs of these units may serve at once; whoever takes them must ``serve`` them."""
        if not self._by_queue:
            return []
        queues = {job.queue for unit in units for job in unit if job.delay is None and job.run_at is None}
        offers = [offer for queue in queues for offer in self._by_queue.get(queue, ())]
        taken = list(dict.fromkeys(offers))
        for offer in taken:
            self._withdraw(offer)
            offer.taking = asyncio.get_running_loop().create_future()
        return taken

    @staticmethod
    def serve(offer: Offer, jobs: list[Job]) -> None:
        assert offer.taking is not None
        offer.taking.set_result(jobs)
        offer.event.set()

    def _withdraw(self, offer: Offer) -> None:
        for queue, _ in offer.request.queues:
            waiting = self._by_queue.get(queue)
            if waiting is not None:
                waiting.pop(offer, None)
                if not waiting:
                    del self._by_queue[queue]
