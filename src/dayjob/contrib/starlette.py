"""dayjob in FastAPI and Starlette: the lifespan, the job of a request, its progress as server-sent events."""

from __future__ import annotations

import inspect
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dayjob import App, JobHandle, Task, Worker
from dayjob.contrib.job_events import END, RETRY, Data, JobMessages, is_of, progress
from dayjob.event_stream import COMMENT, KEEPALIVE, LIFETIME, EventStream
from dayjob.runtime.clock import SYSTEM
from dayjob.worker.os_signals import on_stop_signals

__all__ = ["event_stream", "job_of", "lifespan", "progress"]

R = TypeVar("R")
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]

_stopping: WeakSet[App] = WeakSet()
"""The apps whose server is stopping. Their streams end, since the server waits for open responses."""


def lifespan(app: App, *, worker: bool | Worker = False, inner: Lifespan | None = None) -> Lifespan:
    """Return a lifespan that opens the app: ``FastAPI(lifespan=lifespan(jobs))``.

    ``worker=True`` also runs a worker in the process of the server, and ``worker=Worker(jobs, ...)`` one with
    options. ``inner`` is the application's own lifespan. It may enqueue. Jobs may use its resources, since
    the worker starts after it and is drained before its end.

    When the server receives SIGTERM or SIGINT, the worker claims no more jobs and the event streams end.
    """

    @asynccontextmanager
    async def run(web: Any) -> AsyncIterator[Any]:
        running = Worker(app) if worker is True else worker or None

        def stop() -> None:
            _stopping.add(app)
            if running is not None:
                running.stop()

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            state = None if inner is None else await stack.enter_async_context(inner(web))
            if running is not None:
                await stack.enter_async_context(running)
            if callable(signal.getsignal(signal.SIGTERM)):  # Otherwise no server handles it.
                stack.enter_context(on_stop_signals(stop))
            stack.callback(_stopping.discard, app)
            yield state

    return run


def job_of(source: App | Task[..., R, Any], parameter: str = "id") -> Callable[..., Awaitable[JobHandle[R]]]:
    """Return a dependency of FastAPI: the handle of the job whose id is a parameter of the path.

    ``Annotated[JobHandle[str], Depends(job_of(export))]``. It responds 404 to an id of no job, and of no job
    of this task. In Starlette call it: ``await job_of(export)(id=request.path_params["id"])``.
    """

    async def find(**parameters: str) -> JobHandle[R]:
        handle: JobHandle[R] = source.job(parameters[parameter])
        if not is_of(source, await handle.arecord()):
            raise HTTPException(404, "There is no such job.")
        return handle

    keyword = inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=str)
    find.__signature__ = inspect.Signature([keyword])  # type: ignore[attr-defined]
    return find


def event_stream(request: Request, handle: JobHandle[Any], *, data: Data = progress) -> Response:
    """Return the changes of a job as server-sent events, until it has finished.

    ``data`` returns the JSON of a record. A browser's ``EventSource`` reconnects where it was after a
    failure, and stops at the end of the job.
    """
    last_id = request.headers.get("last-event-id")
    if last_id == END:
        return Response(status_code=204)
    return EventStream(_messages(handle, JobMessages(data, last_id)))


async def _messages(handle: JobHandle[Any], messages: JobMessages) -> AsyncGenerator[bytes, None]:
    app = handle.app
    clock = app.clock or SYSTEM
    began = sent = clock.elapsed()
    yield RETRY
    async with aclosing(handle.updates().reads()) as reads:
        async for job in reads:
            now = clock.elapsed()
            message = b"" if job is None else messages.changed(job)
            if not message and now - sent >= KEEPALIVE:
                message = COMMENT
            if message:
                sent = now
                yield message
            ended = job is not None and job.state.finished
            if not ended and (app in _stopping or now - began >= LIFETIME):
                return
    yield messages.end()
