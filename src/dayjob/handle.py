"""A handle of a job: get its state, progress or result, wait for it, follow it, cancel it. Sync and async."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import msgspec

from dayjob.errors import JobFailed, ResultNotKept
from dayjob.foreign_names import HANDLE_METHODS, ForeignNames
from dayjob.model.codec import ResultDecoder
from dayjob.model.durations import Duration, to_micros
from dayjob.model.job import CancelOutcome, Job, JobState, Waited, id_text, known_key

if TYPE_CHECKING:
    from dayjob.app import App

R = TypeVar("R")


class JobHandle(ForeignNames, Generic[R], names=HANDLE_METHODS):
    """A job by its id: the result of ``enqueue``, ``app.job(id)`` and ``task.job(id)``.

    ``created`` is true if the enqueue that returned the handle stored the job. It is false if the id existed,
    the dedup key was held, or the handle was made from an id.
    """

    __slots__ = ("_result", "app", "created", "id")

    def __init__(self, app: App, id: str, created: bool, result: ResultDecoder | None) -> None:
        self.app = app
        self._result = result
        self.id = id
        self.created = created

    async def arecord(self) -> Job | None:
        """Return the job's record, or None if it does not exist or is no longer kept."""
        return await (await self.app.opened()).get(self.id)

    def record(self) -> Job | None:
        return self.app.call(self.arecord)

    async def astatus(self) -> JobState | None:
        """Return the job's state, or None if its record is no longer kept."""
        job = await self.arecord()
        return None if job is None else job.state

    def status(self) -> JobState | None:
        return self.app.call(self.astatus)

    async def aprogress(self) -> tuple[float, str] | None:
        """Return the fraction and the message that the job last reported, or None."""
        job = await self.arecord()
        return None if job is None else job.progress

    def progress(self) -> tuple[float, str] | None:
        return self.app.call(self.aprogress)

    def updates(self, interval: Duration = 0.5) -> Updates:
        """Return the job's record now and after each change of its state or progress, until it has finished.

        Iterate with ``async for``, or with ``for`` in synchronous code. The end of the job is detected at
        once, and another change within ``interval`` seconds. A record that does not exist ends the iteration.
        """
        if to_micros(interval, "interval") == 0:
            raise ValueError("interval=0: pass the seconds between two reads of the job")
        return Updates(self.app, self.id, interval)

    async def acancel(self) -> CancelOutcome:
        """Cancel the job if it waits, or request its cancel if it runs."""
        return await (await self.app.opened()).cancel(self.id)

    def cancel(self) -> CancelOutcome:
        return self.app.call(self.acancel)

    async def await_end(self, timeout: Duration | None = None) -> Waited:
        """Wait until the job has finished."""
        return await (await self.app.opened()).wait(self.id, timeout)

    def wait(self, timeout: Duration | None = None) -> Waited:
        return self.app.call(lambda: self.await_end(timeout), keep_open=False)

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
        result: R = self._decoder(job)(job.result)
        return result

    def _decoder(self, job: Job) -> Callable[[bytes], Any]:
        """Return the decoder of the task. A result of a task without code here is plain JSON."""
        if self._result is not None:
            return self._result.decode
        task = self.app.find(job)
        return msgspec.json.decode if task is None else task.result.decode

    def result(self, timeout: Duration | None = None) -> R:
        return self.app.call(lambda: self.aresult(timeout), keep_open=False)

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id!r}, created={self.created})"


class Updates:
    """The record of a job after each change. Iterable with ``async for`` and with ``for``."""

    __slots__ = ("_app", "_id", "_interval")

    def __init__(self, app: App, id: str, interval: Duration) -> None:
        self._app = app
        self._id = id
        self._interval = interval

    async def __aiter__(self) -> AsyncGenerator[Job, None]:
        async with aclosing(self.reads()) as reads:
            async for job in reads:
                if job is not None:
                    yield job

    async def reads(self) -> AsyncGenerator[Job | None, None]:
        """Yield the record if it has changed, and None if not, after each read of the job."""
        seen: object = None
        timeout: Duration = 0
        while True:
            waited = await (await self._app.opened()).wait(self._id, timeout)
            job = waited.job
            if job is None:
                return
            changed = (now := (job.state, job.attempts, job.progress)) != seen
            seen = now
            yield job if changed else None
            if job.state.finished:
                return
            timeout = self._interval

    def __iter__(self) -> Iterator[Job]:
        changes = self.__aiter__()

        async def following() -> Job | None:
            return await anext(changes, None)

        while (job := self._app.call(following, keep_open=False)) is not None:
            yield job


def checked_id(id: str | UUID) -> str:
    """Return the id as a job has it. A text that is no UUID is the id of no job, and stays as it is."""
    key = known_key(id)
    return str(id) if key is None else id_text(key)
