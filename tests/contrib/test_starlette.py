"""The helpers for FastAPI and Starlette: lifespan, the job of a request, server-sent events."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, assert_type

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from dayjob import App, BrokerConfig, Context, JobHandle, JobState, Retention, Worker
from dayjob.contrib import starlette
from dayjob.contrib.starlette import event_stream, job_of, lifespan
from dayjob.event_stream import COMMENT, KEEPALIVE, LIFETIME
from dayjob.testing import adrain
from tests.support.waiting import WatchedClock, until, with_timeout

ID = "0191e0a0-0000-7000-8000-000000000001"


@pytest.fixture
def jobs() -> App:
    return App("memory://")


# The lifespan.


async def test_the_worker_runs_inside_the_lifespan_of_the_application(jobs: App) -> None:
    """Jobs can use the resources of the application, also those that run while the worker drains."""
    order: list[str] = []
    started, ending = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def last() -> None:
        started.set()
        await ending.wait()
        order.append("job")

    @asynccontextmanager
    async def own(web: FastAPI) -> AsyncIterator[dict[str, str]]:
        await last.aenqueue()
        order.append("start")
        yield {"database": "open"}
        order.append("end")

    worker = Worker(jobs)
    web = FastAPI(lifespan=lifespan(jobs, worker=worker, inner=own))
    async with web.router.lifespan_context(web) as state:
        assert state == {"database": "open"}
        assert worker.ready
        assert jobs.broker.is_open
        await with_timeout(started.wait())
        asyncio.get_running_loop().call_soon(ending.set)
    assert order == ["start", "job", "end"]
    assert not worker.is_running
    assert jobs._brokers == {}


async def test_without_a_worker_the_lifespan_only_opens_the_app(jobs: App) -> None:
    web = FastAPI(lifespan=lifespan(jobs))
    async with web.router.lifespan_context(web) as state:
        assert state is None
        assert jobs.broker.is_open
        assert await jobs.broker.workers() == []


async def test_a_lifespan_that_fails_to_start_closes_the_app(jobs: App) -> None:
    @asynccontextmanager
    async def broken(_: FastAPI) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    web = FastAPI(lifespan=lifespan(jobs, worker=True, inner=broken))
    with pytest.raises(ValueError, match="no database"):
        async with web.router.lifespan_context(web):
            raise AssertionError("it started")
    assert jobs._brokers == {}


@pytest.fixture
def server_signals() -> Iterator[list[int]]:
    """The signals that the server's own handler receives."""
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    yield received
    assert signal.getsignal(signal.SIGTERM) is handle
    signal.signal(signal.SIGTERM, before)


async def test_a_signal_stops_the_claims_and_ends_the_streams_while_the_server_waits(
    jobs: App, server_signals: list[int]
) -> None:
    @jobs.task
    async def wait() -> None:
        await asyncio.Event().wait()

    worker = Worker(jobs, shutdown_timeout=0)
    web = FastAPI(lifespan=lifespan(jobs, worker=worker))
    async with web.router.lifespan_context(web):
        client = Client(await wait.aenqueue())
        await with_timeout(client.received.wait())
        os.kill(os.getpid(), signal.SIGTERM)
        await with_timeout(client.responding)
        assert server_signals == [signal.SIGTERM]
        assert not worker.ready
        assert client.messages[-1] != END
    again = FastAPI(lifespan=lifespan(jobs))
    async with again.router.lifespan_context(again):
        assert jobs not in starlette._stopping


async def test_without_a_server_that_handles_signals_none_are_handled(jobs: App) -> None:
    """A handler of ours would keep SIGINT and SIGTERM from ending the program."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert before[0] is signal.SIG_DFL
    web = FastAPI(lifespan=lifespan(jobs))
    async with web.router.lifespan_context(web):
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# The job of a request.


@pytest.fixture
async def site(jobs: App) -> AsyncIterator[httpx.AsyncClient]:
    @jobs.task(name="export")
    async def export(ctx: Context, rows: int) -> str:
        ctx.progress(0.5, "half")
        return f"{rows} rows"

    @jobs.task(name="other")
    async def other() -> None: ...

    web = FastAPI()

    # FastAPI evaluates the annotations, so this module does not postpone them.
    @web.post("/{name}")
    async def start(name: str) -> str:
        return (await jobs.asend(name, {"rows": 2} if name == "export" else None)).id

    assert_type(job_of(export), Callable[..., Awaitable[JobHandle[str]]])

    @web.get("/exports/{id}")
    async def status(handle: Annotated[JobHandle[str], Depends(job_of(export))]) -> Any:
        return await handle.astatus()

    @web.get("/exports/{id}/events")
    async def follow(
        request: Request, handle: Annotated[JobHandle[str], Depends(job_of(export))]
    ) -> Response:
        return event_stream(request, handle)

    @web.get("/jobs/{number}")
    async def any_job(handle: Annotated[JobHandle[Any], Depends(job_of(jobs, "number"))]) -> Any:
        return handle.id

    transport = httpx.ASGITransport(app=web)
    async with jobs, httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


async def test_the_dependency_is_the_handle_of_the_job(site: httpx.AsyncClient) -> None:
    id = (await site.post("/export")).json()
    assert (await site.get(f"/exports/{id}")).json() == "pending"
    assert (await site.get(f"/jobs/{id}")).json() == id


@pytest.mark.parametrize("id", [ID, "five", "%00", "x" * 5000])
async def test_an_unknown_id_is_404(site: httpx.AsyncClient, id: str) -> None:
    for path in (f"/exports/{id}", f"/exports/{id}/events", f"/jobs/{id}"):
        answer = await site.get(path)
        assert (answer.status_code, answer.json()) == (404, {"detail": "There is no such job."})


async def test_the_job_of_another_task_is_404(site: httpx.AsyncClient) -> None:
    id = (await site.post("/other")).json()
    assert (await site.get(f"/exports/{id}")).status_code == 404
    assert (await site.get(f"/jobs/{id}")).status_code == 200


async def test_the_parameter_is_part_of_the_documentation(site: httpx.AsyncClient) -> None:
    paths = (await site.get("/openapi.json")).json()["paths"]
    for path, name in (("/exports/{id}", "id"), ("/jobs/{number}", "number")):
        [parameter] = paths[path]["get"]["parameters"]
        assert (parameter["name"], parameter["in"], parameter["required"]) == (name, "path", True)


# Server-sent events.

END = "event: end"


def parsed(text: str) -> list[tuple[str, Any]]:
    """Return the id and the data of each message, and the last one as ("end", data)."""
    first, *messages = text.removesuffix("\n\n").split("\n\n")
    assert first == "retry: 1000"
    found = []
    for message in messages:
        fields = dict(line.split(": ", 1) for line in message.split("\n"))
        found.append((fields.get("event", fields["id"]), json.loads(fields["data"])))
        assert fields.get("event") in (None, fields["id"])
    return found


async def test_a_finished_job_is_one_message_and_the_end(jobs: App, site: httpx.AsyncClient) -> None:
    id = (await site.post("/export")).json()
    await adrain(jobs)
    answer = await site.get(f"/exports/{id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")
    [(number, data), last] = parsed(answer.text)
    assert data == {"state": "done", "progress": 0.5, "message": "half"}
    assert last == ("end", data)
    again = await site.get(f"/exports/{id}/events", headers={"Last-Event-ID": number})
    assert parsed(again.text) == [("end", data)]
    over = await site.get(f"/exports/{id}/events", headers={"Last-Event-ID": "end"})
    assert (over.status_code, over.content) == (204, b"")


class Client:
    """A client of a stream that reads the messages one by one, and may disconnect."""

    def __init__(self, handle: JobHandle[Any], last_id: str = "", **options: Any) -> None:
        self.messages: list[str] = []
        self.received = asyncio.Event()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        headers = [(b"last-event-id", last_id.encode())] if last_id else []
        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
        response = event_stream(Request(scope), handle, **options)
        self.responding = asyncio.ensure_future(response(scope, self._inbox.get, self._send))

    async def _send(self, message: Message) -> None:
        text = message.get("body", b"").decode()
        self.messages += [text] if text and not text.startswith("retry") else []
        if self.messages:
            self.received.set()

    async def message(self) -> str:
        """Return the next message."""
        await with_timeout(self.received.wait())
        self.received.clear()
        return self.messages[-1]

    async def disconnect(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})
        await with_timeout(self.responding)


@pytest.fixture
async def clock(jobs: App) -> WatchedClock:
    jobs.clock = WatchedClock()
    return jobs.clock


async def waiting_job(jobs: App) -> JobHandle[Any]:
    @jobs.task(name="wait")
    async def wait() -> None: ...

    return await wait.aenqueue()


async def next_read(clock: WatchedClock, seconds: float = 0.5) -> None:
    await clock.until_waiting_for(0.5)
    clock.advance(seconds)


async def test_a_disconnect_leaves_nothing_behind(jobs: App, clock: WatchedClock) -> None:
    async with jobs:
        handle = await waiting_job(jobs)
        before = asyncio.all_tasks()
        client = Client(handle)
        assert '"state":"pending"' in await client.message()
        await clock.until_waiting_for(0.5)
        await client.disconnect()

        async def nothing_is_left() -> bool:
            return asyncio.all_tasks() == before and clock._waits == []

        await until(nothing_is_left)
        assert client.messages[1:] == []


async def test_a_silent_stream_sends_comments_for_proxies_and_ends_after_a_minute(
    jobs: App, clock: WatchedClock
) -> None:
    async with jobs:
        client = Client(await waiting_job(jobs))
        await client.message()
        for _ in range(3):
            await next_read(clock, KEEPALIVE)
            assert await client.message() == COMMENT.decode()
        await next_read(clock, LIFETIME - 3 * KEEPALIVE)
        await with_timeout(client.responding)
        assert END not in "".join(client.messages)


async def test_a_client_that_reconnects_receives_only_a_change(jobs: App, clock: WatchedClock) -> None:
    async with jobs:
        handle = await waiting_job(jobs)
        first = Client(handle)
        message = await first.message()
        await first.disconnect()
        again = Client(handle, message.partition("\n")[0].removeprefix("id: "))
        await clock.until_waiting_for(0.5)
        assert again.messages == []
        await handle.acancel()
        await with_timeout(again.responding)
        assert again.messages[-1].startswith("id: end\nevent: end\n")


async def test_a_record_that_is_not_kept_ends_the_stream_with_null() -> None:
    jobs = App("memory://", config=BrokerConfig(retention=Retention(done=0)))
    async with jobs:
        client = Client(await waiting_job(jobs))
        await client.message()
        await adrain(jobs)
        await with_timeout(client.responding)
        assert client.messages[-1] == "id: end\nevent: end\ndata: null\n\n"


async def test_the_application_chooses_the_data_and_its_error_is_raised(jobs: App) -> None:
    async with jobs:
        handle = await waiting_job(jobs)
        client = Client(handle, data=lambda job: {"queue": job.queue})
        assert '{"queue":"default"}' in await client.message()
        await client.disconnect()
        broken = Client(handle, data=lambda job: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await with_timeout(broken.responding)


async def test_the_progress_of_a_running_job_arrives(jobs: App) -> None:
    proceed = asyncio.Event()

    @jobs.task
    async def export(ctx: Context) -> None:
        ctx.progress(0.25, "row 1")
        await proceed.wait()

    async with Worker(jobs):
        handle = await export.aenqueue()

        async def reported() -> bool:
            return await handle.aprogress() == (0.25, "row 1")

        await until(reported)
        client = Client(handle)
        assert '{"state":"running","progress":0.25,"message":"row 1"}' in await client.message()
        proceed.set()
        await with_timeout(client.responding)
    assert '"state":"done"' in client.messages[-1]
    assert await handle.astatus() is JobState.DONE
    await jobs.close()
