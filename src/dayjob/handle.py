"""A handle of an enqueued job: get its state or result, wait for it, cancel it. Sync and async."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from dayjob.errors import JobFailed, ResultNotKept
from dayjob.model.codec import ResultDecoder
from dayjob.model.durations import Duration
from dayjob.model.job import CancelOutcome, JobState, Waited

if TYPE_CHECKING:
    from dayjob.app import App

R = TypeVar("R")


class JobHandle(Generic[R]):
    """The result of ``enqueue``. ``created`` is false if the id existed or the dedup key was held."""

    __slots__ = ("_app", "_result", "created", "id")

    def __init__(self, app: App, id: str, created: bool, result: ResultDecoder) -> None:
        self._app = app
        self._result = result
        self.id = id
        self.created = created

    async def astatus(self) -> JobState | None:
        """Return the job's state, or None if its record is no longer kept."""
        job = await (await self._app.opened()).get(self.id)
        return None if job is None else job.state

    def status(self) -> JobState | None:
        return self._app.call(self.astatus)

    async def acancel(self) -> CancelOutcome:
        """Cancel the job if it waits, or request its cancel if it runs."""
        return await (await self._app.opened()).cancel(self.id)

    def cancel(self) -> CancelOutcome:
        return self._app.call(self.acancel)

    async def await_end(self, timeout: Duration | None = None) -> Waited:
        """Wait until the job has finished."""
        return await (await self._app.opened()).wait(self.id, timeout)

    def wait(self, timeout: Duration | None = None) -> Waited:
        return self._app.call(lambda: self.await_end(timeout), keep_open=False)

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait for the job and return the result of its task.

        Raise ``JobFailed`` if it ended dead or cancelled, ``ResultNotKept`` if its record or result is not
        kept, ``TimeoutError`` if it has not finished in time.
        """
        waited = await self.await_end(timeout)
        if waited.status == "timed_out":
            raise TimeoutError(
                f"job {self.id} has not finished after {timeout} s: wait longer, or see `dayjob explain`"
            )
        job = waited.job
        if job is None:
            raise ResultNotKept(
                f"job {self.id} and its result are not kept: it was cancelled, or its retention is over. "
                "Keep jobs longer with Retention(done=..., cancelled=...)"
            )
        if job.state is not JobState.DONE:
            reason = f": {job.last_error}" if job.last_error else ""
            raise JobFailed(f"job {self.id} ended {job.state.value}{reason}")
        if not job.result:
            raise ResultNotKept(
                f"job {self.id} is done, but its result could not be stored: see the log of the worker"
            )
        result: R = self._result.decode(job.result)
        return result

    def result(self, timeout: Duration | None = None) -> R:
        return self._app.call(lambda: self.aresult(timeout), keep_open=False)

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id!r}, created={self.created})"
