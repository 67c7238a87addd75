"""The claims that this process holds, and their cancel tokens.

A claim is held from the moment the broker has the reply until its ``Job`` is settled or no longer
referenced. The ``WatchCancels`` duty reads the cancel requests after each ``CANCEL`` signal, so a request
made in any process fires the token. A request that arrives while the claim's reply is under way is found
by a second read. ``checks`` shows whether one is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

from dayjob.model.job import Job
from dayjob.runtime.stop_signal import StopSignal

_FEW = 10_000
"""Up to this many claims are held before those that are no longer referenced are dropped."""


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

    def fire(self) -> None:
        self._stop.set("cancel")

    def __repr__(self) -> str:
        return f"CancelToken(job={self._job.id!r}, cancelled={self.cancelled})"


class HeldClaims:
    """The claims of one broker. Used on its event loop."""

    def __init__(self) -> None:
        self._held: dict[tuple[bytes, bytes], ref[Job]] = {}
        """By job and claim: the reply to an earlier claim of a job may arrive after that of a later one."""
        self._prune_at = _FEW
        self.checks = 0
        """The number of reads of the cancel requests that have ended."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def holds_any(self, keys: Iterable[bytes]) -> bool:
        wanted = set(keys)
        return any(key in wanted for key, _ in self._held)

    def hold(self, jobs: Iterable[Job]) -> None:
        held = self._held
        for job in jobs:
            job._tokens = self
            held[job.key, job.claim] = ref(job)
        if len(held) > self._prune_at:
            self._held = {claim: job for claim, job in held.items() if job() is not None}
            self._prune_at = max(_FEW, 2 * len(self._held))

    def drop(self, jobs: Iterable[Job]) -> None:
        held = self._held
        for job in jobs:
            held.pop((job.key, job.claim), None)

    def token(self, job: Job) -> CancelToken:
        if job._token is None:
            job._token = CancelToken(job)
            if job.cancel_requested:
                job._token.fire()
        return job._token

    def cancel_requested(self, job: Job) -> None:
        job.cancel_requested = True
        if job._token is not None:
            job._token.fire()
        if job._watcher is not None:
            job._watcher()

    def checked(self, requests: Iterable[tuple[bytes, bytes]]) -> None:
        """Fire the tokens of the held claims among those with a cancel request. A read has ended."""
        for request in requests:
            held = self._held.get(request)
            job = None if held is None else held()
            if job is not None:
                self.cancel_requested(job)
        self.checks += 1
