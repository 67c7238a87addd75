"""Calls as a user writes them. Both type checkers accept every line; it is checked, never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from dayjob import (
    HIGH,
    App,
    BrokerConfig,
    CancelOutcome,
    Context,
    Job,
    JobHandle,
    JobState,
    Retention,
    Retry,
    Waited,
    Worker,
    current,
)
from dayjob.testing import EnqueuedCall, ManualClock, assert_enqueued, drain, eager, enqueued, sandbox


async def logged(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return await call_next()


@asynccontextmanager
async def lifespan(app: App) -> AsyncGenerator[dict[str, str]]:
    yield {"pool": app.name}


@asynccontextmanager
async def scope(tenant: str) -> AsyncGenerator[None]:
    yield


app = App(
    "sqlite:///jobs.db",
    config=BrokerConfig(retention=Retention(done=timedelta(days=1))),
    middleware=[logged],
    tenant_scope=scope,
    lifespan=lifespan,
    name="shop",
)


@app.task
async def fetch(url: str, *, tries: int = 3) -> bytes:
    return b""


@app.task
def double(value: int) -> int:
    return value * 2


@app.task(queue="email", retry=Retry.exponential(attempts=5, jitter="full"), timeout=60, pool="thread")
async def send_email(ctx: Context, to: str, subject: str = "") -> str:
    return ctx.job.id


@app.task(retry=lambda attempt, error: attempt * 2.0, dedup="settled", cancel="interrupt")
def resize(ctx: Context, path: str, /, *sizes: int, **options: bool) -> None:
    ctx.progress(0.5, "half")
    assert_type(ctx.then(double.bind(2), kv={b"k": b"v"}), list[str])
    current().log.info("resized")


@app.task
def notify(ctx: Context | None, to: str) -> int:
    return 0 if ctx is None else ctx.attempt


def by_user(user: int) -> str:
    return str(user)


@app.task(dedup=by_user)
def nothing(user: int) -> None: ...


@app.task(dedup="latest", dedup_key=by_user, dedup_until="settled", dedup_max_delay=60, dedup_scope="global")
def debounced(user: int) -> None: ...


@app.task
def anything(value: Any) -> int:
    return 1


@app.task(queue="open")
async def objects(value: object, other: int) -> int:
    return 1


@app.handler(queue="raw")
def raw(job: Job) -> None: ...


@app.on("job.*")
def seen(event: object) -> None: ...


async def several() -> AsyncGenerator[tuple[int]]:
    yield (1,)


@contextmanager
def testing() -> Generator[None]:
    with sandbox(app, ManualClock()), eager(app, raises=False):
        assert_type(drain(app, scheduled=True, raises=False), int)
        assert_type(assert_enqueued(send_email, "ada", subject="hi"), Job)
        assert_type(enqueued(double), list[EnqueuedCall])
        yield


def synchronous() -> None:
    assert_type(double.enqueue(2), JobHandle[int])
    assert_type(double.enqueue(value=2).result(), int)
    assert_type(double.enqueue(2).status(), JobState | None)
    assert_type(double.enqueue(2).cancel(), CancelOutcome)
    assert_type(double.enqueue(2).wait(timeout=timedelta(seconds=1)), Waited)
    assert_type(double.enqueue_many([(1,), {"value": 2}, double.bind(3)]), list[JobHandle[int]])
    assert_type(double(2), int)
    assert_type(send_email.enqueue("ada", subject="hi"), JobHandle[str])
    assert_type(
        send_email.using(delay=60, priority=HIGH, dedup_key="k", dedup="latest", dedup_for=60).enqueue("ada"),
        JobHandle[str],
    )
    assert_type(
        send_email.using(run_at=datetime.max).using(queue="slow").enqueue("ada", "hi"), JobHandle[str]
    )
    assert_type(fetch.enqueue("https://", tries=5).result(timeout=5), bytes)
    resize.enqueue("a.jpg", 1, 2, 3, sharp=True)
    resize("a.jpg")
    assert_type(notify.enqueue("ada"), JobHandle[int])
    assert_type(notify("ada"), int)
    nothing.enqueue(5).result()
    raw.enqueue(b"bytes")
    assert_type(anything.enqueue(5), JobHandle[int])
    assert_type(anything.enqueue(value=5).result(), int)
    assert_type(objects.enqueue("x", other=5).result(), int)
    assert_type(double.enqueue_many(((n,) for n in range(3)), atomic=False), list[JobHandle[int]])
    assert_type(double.job("id"), JobHandle[int])
    assert_type(fetch.job(UUID(int=1)).result(timeout=5), bytes)
    assert_type(app.job("id"), JobHandle[Any])
    assert_type(double.job("id").record(), Job | None)
    assert_type(double.job("id").progress(), tuple[float, str] | None)
    for update in double.job("id").updates(interval=1):
        assert_type(update, Job)
    assert_type(app.send("shop.mail", {"to": "ada"}, queue="email", delay=5), JobHandle[Any])
    with app:
        double.bind(1)


async def asynchronous() -> None:
    assert_type(await fetch("https://"), bytes)
    assert_type(await fetch.aenqueue("https://"), JobHandle[bytes])
    assert_type(await (await fetch.aenqueue("https://")).aresult(timeout=30), bytes)
    assert_type(await send_email("ada"), str)
    assert_type(await double.aenqueue_many([(1,)]), list[JobHandle[int]])
    assert_type(await (await double.using(delay=1).aenqueue(2)).astatus(), JobState | None)
    assert_type(await (await double.aenqueue(2)).acancel(), CancelOutcome)
    assert_type(await (await double.aenqueue(2)).await_end(5), Waited)
    assert_type(await double.job("id").aresult(), int)
    assert_type(await double.job("id").arecord(), Job | None)
    assert_type(await double.job("id").aprogress(), tuple[float, str] | None)
    async for update in double.job("id").updates():
        assert_type(update, Job)
    assert_type(await app.asend("shop.mail"), JobHandle[Any])
    assert_type(await double.aenqueue_many(several(), atomic=False), list[JobHandle[int]])
    async with app:
        await Worker(app, queues=("default", "email")).run_until_idle()
