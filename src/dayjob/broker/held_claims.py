"""The claims that this process holds, and the tokens that tell their holders of a cancel.

A claim is watched from the moment its commit is known until nobody refers to its ``Job`` any more.
Cancel requests are read from the store when a signal says that there may be some, so a request made
in any process reaches the claim; one made while a claim is still on its way back is looked for again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from weakref import ref

from dayjob.model.job import Job
from dayjob.runtime.stop_signal import StopSignal

_FEW = 10_000
"""Up to this many, claims whose holders dropped them without settling are let be."""


class CancelToken:
    """Fires once, when a cancel of its claim is requested."""

    __slots__ = ("_job", "_stop")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stop = StopSignal()

    @property
    def cancelled(self) -> bool:
        return self._stop.is_set()

    async def wait(self) -> None:
        """Return when a cancel is requested."""
        await self._stop.wait()

    def when_fired(self, callback: Callable[[], None]) -> None:
        """Call back when a cancel is requested, on the broker's event loop; at once if it was."""
        self._stop.when_set(callback)

    def fire(self) -> None:
        self._stop.set("cancel")

    def __repr__(self) -> str:
        return f"CancelToken(job={self._job.id!r}, cancelled={self.cancelled})"


class HeldClaims:
    """Which claims are held here. Used on the broker's event loop."""

    def __init__(self, find_requests: Callable[[], Awaitable[Iterable[tuple[bytes, int]]]]) -> None:
        self._find_requests = find_requests
        self._held: dict[bytes, ref[Job]] = {}
        self._tidy_at = _FEW
        self.checks = 0
        """How many looks for requests have ended; tells whether one ended while a claim was on its way."""

    def hold(self, jobs: Iterable[Job]) -> None:
        held = self._held
        for job in jobs:
            job._tokens = self
            held[job.key] = ref(job)
        if len(held) > self._tidy_at:
            self._held = {key: claim for key, claim in held.items() if claim() is not None}
            self._tidy_at = max(_FEW, 2 * len(self._held))

    def let_go(self, jobs: Iterable[Job]) -> None:
        held = self._held
        for job in jobs:
            claim = held.get(job.key)
            if claim is not None and claim() is job:
                del held[job.key]

    def token(self, job: Job) -> CancelToken:
        if job._token is None:
            job._token = CancelToken(job)
            if job.cancel_requested:
                job._token.fire()
        return job._token

    def requested(self, job: Job) -> None:
        job.cancel_requested = True
        if job._token is not None:
            job._token.fire()
        if job._watcher is not None:
            job._watcher()

    async def check(self) -> None:
        """Look for cancel requests and fire the tokens that they are meant for."""
        if self._held:
            requests = await self._find_requests()
            for key, epoch in requests:
                claim = self._held.get(key)
                job = None if claim is None else claim()
                if job is not None and job.epoch == epoch:
                    self.requested(job)
        self.checks += 1
