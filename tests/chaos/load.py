"""The load of a run: tasks that succeed, fail and misbehave, and the roles that use them.

The app is made when this module is imported, from the environment, so that child processes find it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from dayjob import (
    App,
    Broker,
    BrokerConfig,
    Context,
    DeadLetter,
    EngineUnavailable,
    JobState,
    LeaseLost,
    Limit,
    QueueConfig,
    Recurring,
    Retention,
    Retry,
    RetryLater,
    Snooze,
)
from dayjob.model.job import id_text
from dayjob.runtime.clock import SYSTEM, block
from dayjob.runtime.ids import new_key
from tests.chaos.record import Fault, Record, Run
from tests.chaos.seeded import Choices
from tests.support.processes import pause

URL = "DAYJOB_CHAOS_URL"
"""The environment variable with the URL of the storage."""

KEPT, BRIEF, AFTER, ORDERED, TICKS = "kept", "brief", "after", "ordered", "ticks"
QUEUES = (KEPT, BRIEF, AFTER, TICKS)
"""The queues of the workers. The consumer has ``ORDERED``."""

KEPT_QUEUES = [KEPT, AFTER, ORDERED, TICKS]
SCHEDULE = "tick"

YEARS = 3600.0 * 24 * 365 * 10
LEASE = 3.0
FEW = 2
"""The limit of the jobs with a limit."""

LIMITS = {"few": FEW}
RETRY = Retry.fixed(attempts=4, delay=0.2)
CONFIG = BrokerConfig(
    default=QueueConfig(lease=LEASE, retry=RETRY),
    queues={
        BRIEF: QueueConfig(lease=LEASE, retry=RETRY, retention=Retention(done=0, dead=YEARS, cancelled=0))
    },
    retention=Retention(done=YEARS, dead=YEARS, cancelled=YEARS),
    reap_interval=0.5,
    promote_interval=0.2,
    sweep_interval=5,
    dead_after=3,
)

BACKLOG = 200
"""Waiting jobs above which producers pause."""

T = TypeVar("T")

app = App(os.environ.get(URL, "memory://chaos"), config=CONFIG)
_record: Record | None = None


def use_record(record: Record) -> None:
    """Record the runs of this process."""
    global _record
    _record = record


async def _recorded(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    if _record is not None:
        _record.write(Run(id=ctx.job.id, claim=ctx.job.claim.hex()))
    return await call_next()


app.middleware = (_recorded,)


# Tasks.


@app.task(queue=AFTER, name="after")
async def after(parent: str) -> None:
    """The follow-up of another job."""


@app.task(queue=TICKS, name="tick")
async def tick() -> None:
    """A job of the schedule."""


@app.task(queue=BRIEF, name="brief")
async def brief(do: str) -> None:
    await behave(do)


@app.task(queue=KEPT, name="work", timeout=LEASE * 2)
async def work(ctx: Context, do: str) -> str:
    if do == "follow":
        ctx.then(after.bind(ctx.job.id), kv={f"{ctx.job.id} {ctx.epoch}".encode(): b"done"})
    elif do == "fail once" and ctx.attempt == 1:
        raise ValueError("once")
    elif do == "snooze" and ctx.job.epoch % 2:
        raise Snooze(0.1)
    elif do == "later" and ctx.attempt == 1:
        raise RetryLater(0.1)
    elif do == "progress":
        ctx.progress(0.5, "half")
    await behave(do)
    return do


@app.task(queue=KEPT, name="limited", limits=[Limit("few", running=FEW, key=lambda key: key)])
async def limited(key: str) -> None:
    """A job of which few run at once."""
    await pause(0.1)


@app.task(queue=KEPT, name="thread", timeout=LEASE * 2)
def thread(do: str) -> str:
    block(0.02)
    return do


@app.task(queue=KEPT, name="process", pool="process", timeout=LEASE * 2)
def process(do: str) -> str:
    if do == "exit":
        os._exit(3)
    return do


async def behave(do: str) -> None:
    """Perform the action that the job names, if it concerns the whole worker."""
    if do == "fail":
        raise ValueError("always")
    if do == "dead":
        raise DeadLetter("hopeless")
    if do == "slow":
        await pause(0.3)
    elif do == "long":
        await pause(LEASE * 1.3)
    elif do == "hang":
        await asyncio.Event().wait()
    elif do == "block":
        block(0.4)
    elif do == "swallow":
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    elif do == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
    elif do == "leak":
        _leaked.append(bytes(10_000))
    elif do == "exit":
        if _record is not None:
            now = SYSTEM.elapsed()
            _record.write(Fault(kind="handler exits", at=now, until=now, pid=os.getpid()))
        os._exit(9)


_leaked: list[bytes] = []

WORK = {
    "ok": 40.0, "follow": 20.0, "fail once": 8.0, "fail": 2.0, "dead": 2.0, "snooze": 3.0, "later": 3.0,
    "slow": 5.0, "progress": 3.0, "block": 0.4, "leak": 1.0, "fork": 0.2,
}  # fmt: skip
"""The behaviours of jobs, with their weights."""

LONG = {"long": 0.7, "hang": 0.1, "swallow": 0.1}
"""Those that take seconds."""

EXITS = {"exit": 0.03}
"""Those that end the worker, where it may be replaced."""


# Roles.


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Call until the storage is available."""
    while True:
        try:
            return await call()
        except EngineUnavailable:
            await pause(0.05)


class Producer:
    """Enqueues singly, in batches, with keys, ids, kv writes, delays and expiry."""

    def __init__(self, choices: Choices, *, exits: bool, long: bool, rate: float) -> None:
        self._choices = choices
        self._behaviours = {**WORK, **(EXITS if exits else {}), **(LONG if long else {})}
        self._rate = rate
        self._ids: list[str] = []
        self._turn = 0

    async def run(self, stopped: asyncio.Event) -> None:
        broker = await again(app.opened)
        while not stopped.is_set():
            self._turn += 1
            try:
                if self._turn % 20 == 0:
                    await self._wait_for_workers(broker, stopped)
                await self._enqueue(broker)
            except EngineUnavailable:
                await pause(0.05)
            await pause(self._choices.between(0, 2 / self._rate))

    async def _wait_for_workers(self, broker: Broker, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            waiting = sum(stats.pending for stats in (await broker.all_stats()).values())
            if waiting < BACKLOG:
                return
            await pause(0.05)

    async def _enqueue(self, broker: Broker) -> None:
        choices, do = self._choices, self._choices.weighted(self._behaviours)
        match choices.number(12):
            case 0:
                calls = [(choices.weighted(self._behaviours),) for _ in range(2 + choices.number(6))]
                await work.aenqueue_many(calls)
            case 1:
                until: Any = choices.one(["claimed", "settled"])
                key = f"{until} {choices.number(5)}"
                await work.using(dedup_key=key, dedup_until=until).aenqueue("slow")
            case 2:
                name = f"put {os.getpid()} {self._turn}".encode()
                await work.using(kv={name: b"put"}).aenqueue(do)
            case 3:
                await work.using(delay=choices.between(0.05, 0.5)).aenqueue(do)
            case 4:
                await work.using(expires=choices.between(0.05, 2)).aenqueue(do)
            case 5:
                await self._with_id()
            case 6:
                await brief.aenqueue("dead" if choices.chance(0.05) else "ok")
            case 7 | 8:
                await broker.enqueue(ORDERED, b"", priority=choices.one([100, 1000, 1000]))
            case 9 if choices.chance(0.5):
                await thread.aenqueue("ok")
            case 9:
                await limited.aenqueue_many([(choices.one(["a", "b"]),) for _ in range(4)])
            case 10 if choices.chance(0.1):
                await process.aenqueue(choices.one(["ok", "ok", "exit"]))
            case _:
                await work.using(priority=choices.one([100, 1000, 10000])).aenqueue(do)

    async def _with_id(self) -> None:
        """Enqueue an id, a new one or one of before, until the storage has acknowledged it."""
        if self._ids and self._choices.chance(0.5):
            id = self._choices.one(self._ids)
        else:
            id = id_text(new_key())
            self._ids = [*self._ids[-50:], id]
        task: Any = self._choices.one([work, brief])
        await again(lambda: task.using(id=id).aenqueue("ok"))


async def consume(stopped: asyncio.Event) -> None:
    """Claim the jobs of the ordered queue, one by one, as its only consumer."""
    broker = await again(app.opened)
    while not stopped.is_set():
        try:
            for job in await broker.claim(ORDERED, wait=0.5):
                await broker.ack(job, kv={f"{job.id} {job.epoch}".encode(): b"done"})
        except EngineUnavailable:
            await pause(0.05)
        except LeaseLost:
            pass


async def operate(choices: Choices, stopped: asyncio.Event) -> None:
    """Cancel, requeue, reschedule and purge jobs, and pause a queue for a while."""
    broker = await again(app.opened)
    while not stopped.is_set():
        with suppress(EngineUnavailable):
            await _operate_once(broker, choices)
        await pause(choices.between(0.05, 0.3))
    await again(lambda: broker.resume(BRIEF))


async def _operate_once(broker: Broker, choices: Choices) -> None:
    state = choices.one([JobState.PENDING, JobState.RUNNING, JobState.SCHEDULED, JobState.DEAD])
    jobs = await broker.jobs(KEPT, state, limit=20, newest_first=True)
    if jobs:
        id = choices.one(jobs).id
        if state is JobState.DEAD:
            if choices.chance(0.2):
                await broker.purge_many([id])
            elif choices.chance(0.3):
                await broker.requeue(id)
        elif state is JobState.PENDING and choices.chance(0.3):
            await broker.reschedule(id, priority=choices.one([50, 5000]))
        elif choices.chance(0.5):
            await broker.cancel(id)
    if choices.chance(0.05):
        await broker.pause(BRIEF)
        await pause(0.2)
        await again(lambda: broker.resume(BRIEF))


async def schedule(broker: Broker) -> int:
    """Store the schedule of the run. Return its first due time."""
    recurring = Recurring(SCHEDULE, every=1, task=tick, missed="once")
    due = (await again(lambda: broker.schedule(recurring))).next_us
    assert due is not None
    return due
