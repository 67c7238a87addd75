"""Tasks that run in child processes, which import this module by its name."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import dayjob
from dayjob import (
    App,
    BrokerConfig,
    Context,
    DeadLetter,
    Job,
    JobCancelled,
    QueueConfig,
    Retention,
    Retry,
    RetryLater,
    Snooze,
    TenantNotFound,
)
from dayjob.worker.child_process import ProcessDied

DAY = timedelta(days=1)
tenant: ContextVar[str] = ContextVar("tenant", default="none")
visits: ContextVar[int] = ContextVar("visits", default=0)


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[dict[str, Any]]:
    yield {"pid": os.getpid(), "runs": 0}
    farewells = os.environ.get("PROCESS_TASKS_FAREWELLS")
    if farewells:
        (Path(farewells) / str(os.getpid())).touch()


@asynccontextmanager
async def tenant_scope(name: str) -> AsyncIterator[None]:
    if name == "stranger":
        raise TenantNotFound(name)
    tenant.set(f"{name} in {os.getpid()}")
    try:
        yield
    except KeyError as error:
        raise DeadLetter(f"the scope saw {error!r}") from None


app = App(
    os.environ.get("PROCESS_TASKS_URL", "memory://"),
    config=BrokerConfig(
        default=QueueConfig(retry=Retry.fixed(attempts=3, delay=3600)),  # No retry is due during a test.
        retention=Retention(done=DAY, dead=DAY, cancelled=DAY),
    ),
    lifespan=lifespan,
    tenant_scope=tenant_scope,
    name="process-tasks",
)


@dataclass
class Place:
    city: str
    floor: int = 0


class Hopeless(Exception):
    pass


@app.task(pool="process")
def describe(ctx: Context, at: datetime, id: UUID, place: Place, *, note: str = "none") -> dict[str, Any]:
    assert ctx is dayjob.current()
    kinds = [type(value).__name__ for value in (at, id, place)]
    return {
        "kinds": kinds, "city": place.city, "note": note, "attempt": ctx.attempt, "epoch": ctx.epoch,
        "id": ctx.job.id, "queue": ctx.job.queue, "pid": os.getpid(),
    }  # fmt: skip


@app.task(pool="process")
def pid() -> int:
    return os.getpid()


@app.task(pool="process")
async def visit(ctx: Context) -> tuple[int, int, int, int]:
    """Return the pid, the pid of the lifespan, its number of runs, and a variable of this run."""
    ctx.state["runs"] += 1
    visits.set(visits.get() + 1)
    return os.getpid(), ctx.state["pid"], ctx.state["runs"], visits.get()


@app.task(pool="process")
def whose() -> str:
    return tenant.get()


@app.task(pool="process")
async def whose_async() -> str:
    return tenant.get()


@app.task(pool="process")
def fail_in_scope(wait: bool = False) -> None:
    raise KeyError("inside")


@app.task(pool="process")
def lead(ctx: Context, ok: bool) -> list[str]:
    ids = ctx.then(
        pid.bind(),
        pid.using(delay=timedelta(hours=1), expires=timedelta(hours=2)).bind(),
        kv={b"led": b"\xff"},
    )
    if not ok:
        raise ValueError("not now")
    return ids


@app.task(pool="process")
def enqueue_more() -> str:
    return pid.enqueue().id


@app.task(pool="process")
async def enqueue_more_async() -> str:
    return (await pid.aenqueue()).id


@app.task(pool="process")
def report(ctx: Context) -> str:
    ctx.progress(0.5, "half \ud800")
    ctx.log.info("halfway %s", "there")
    reason = ctx.cancelled.wait_in_thread() and ctx.cancelled.reason
    if ctx.job.cancel_requested:
        raise JobCancelled
    return str(reason)


@app.task(pool="process")
async def wait_for_shutdown(ctx: Context) -> str:
    ctx.progress(0.1)
    return await ctx.shutting_down.wait()


@app.task(pool="process")
def explode() -> None:
    raise ValueError("the boiler is dry")


@app.task(pool="process", retry=Retry.fixed(attempts=5, delay=0, give_up_on=(Hopeless,)))
def give_up(ctx: Context) -> None:
    raise Hopeless if ctx.attempt == 2 else ValueError("once more")


@app.task(pool="process", retry=lambda attempt, error: 7.0 if isinstance(error, Hopeless) else None)
def hopeless() -> None:
    raise Hopeless


@app.task(pool="process", retry=Retry.fixed(attempts=5, delay=0, give_up_on=(ProcessDied,)))
def die_for_good() -> None:
    os._exit(7)


@app.task(pool="process")
def end_by(way: str) -> None:
    if way == "dead letter":
        raise DeadLetter("no such customer")
    if way == "later":
        raise RetryLater(timedelta(minutes=5), "busy")
    if way == "snooze":
        raise Snooze(60)
    if way == "exit":
        raise SystemExit(3)
    if way == "interrupt":
        raise KeyboardInterrupt
    if way == "generator":
        raise GeneratorExit
    if way == "stop":
        raise StopIteration


@app.task(pool="process")
async def end_by_async(way: str) -> None:
    end_by(way)


@app.task(pool="process")
def unkeepable() -> object:
    return object()


@app.task(pool="process")
def big(size: int) -> str:
    return "x" * size


@app.task(pool="process")
def die(way: str) -> None:
    if way == "null":
        ctypes.string_at(0)
    if way == "exit":
        os._exit(1)
    if way == "close":
        os.closerange(3, 256)
        return
    os.kill(os.getpid(), signal.Signals[way])


@app.task(pool="process")
def shrug_off() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def stall(ctx: Context) -> None:
    ctx.progress(0.1, str(os.getpid()))
    threading.Event().wait()


interruptible = app.task(name="interruptible", pool="process", cancel="interrupt")(stall)
limited = app.task(name="limited", pool="process", timeout=0.5)(stall)
stalling = app.task(name="stalling", pool="process")(stall)


@app.task(pool="process", timeout=1)
def leave_a_process(fifo: str) -> None:
    with Path(fifo).open("wb") as pipe:
        subprocess.Popen(["sleep", "600"], stdout=pipe)
    threading.Event().wait()


@app.task(pool="process")
def meet(fifo: str, mode: str) -> int:
    """Block until another process opens the other end."""
    with Path(fifo).open(mode):
        return os.getpid()


def fork_helper(ctx: Context, way: str) -> int:
    """Fork a process that ends in this way. Return its exit code."""
    child = os.fork()
    if child == 0:
        ctx.log.error("the helper logs")
        ctx.progress(0.9, "of the helper")
        if way == "exit":
            sys.exit(7)
        if way == "raise":
            raise ValueError("the helper fails")
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@app.task(pool="process", timeout=20)
def fork(ctx: Context, way: str) -> int:
    return fork_helper(ctx, way)


@app.task(pool="process", timeout=20)
async def fork_async(ctx: Context, way: str) -> int:
    return fork_helper(ctx, way)


@app.task(pool="process")
def invoice(number: int) -> int:
    if number % 2:
        raise ValueError(f"invoice {number} is odd")
    return number


@app.task(pool="process")
def log_by_all_means(ctx: Context) -> int:
    shop = logging.getLogger("shop.billing")
    shop.debug("too detailed")
    shop.info("paid %s", "20 %", extra={"customer": 7, "tags": ["a"], "place": Place("Bern"), "huge": 2**80})
    logging.getLogger("shop.verbose").debug("this logger has a level of its own")
    try:
        raise KeyError("account")
    except KeyError:
        ctx.log.exception("no balance", extra={"account": 3})
    warnings.warn("an old call", stacklevel=1)
    return os.getpid()


@app.handler(queue="raw", pool="process")
def take(job: Job) -> list[int]:
    return list(job.payload)
