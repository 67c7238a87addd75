"""A run leaves nothing behind: no state of its task, no result in an idle thread, no heap of garbage."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest

from dayjob import App, Context
from dayjob.runtime.clock import yield_to_loop
from dayjob.worker import process_memory
from dayjob.worker.pool_limit import PoolLimit
from dayjob.worker.thread_pool import ThreadPool
from tests.support.workers import MakeApp, run_until_idle, until


async def test_a_run_that_was_suspended_shares_its_task_with_no_other(app: App) -> None:
    """Libraries keep state by the current task, such as a scoped session."""
    tasks: list[Any] = []

    @app.task
    async def work() -> None:
        tasks.append(asyncio.current_task())
        await yield_to_loop()

    await work.aenqueue_many([()] * 20)
    await run_until_idle(app, concurrency=2)
    assert len({id(task) for task in tasks}) == 20


async def test_plain_middleware_runs_in_the_thread_of_a_plain_handler(make_app: MakeApp) -> None:
    seen: list[tuple[str, bool]] = []

    def plain(ctx: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(("middleware", threading.current_thread() is threading.main_thread()))
        return call_next()

    app = make_app(middleware=[plain])

    @app.task
    def in_thread() -> None:
        seen.append(("handler", threading.current_thread() is threading.main_thread()))

    @app.task
    async def on_loop() -> None:
        seen.append(("coroutine", threading.current_thread() is threading.main_thread()))

    await in_thread.aenqueue()
    await run_until_idle(app)
    assert seen == [("middleware", False), ("handler", False)]
    seen.clear()
    await on_loop.aenqueue()
    await run_until_idle(app)
    assert seen == [("coroutine", True)], "plain middleware would block the event loop"


class Large:
    pass


async def test_an_idle_thread_keeps_no_result() -> None:
    threads = ThreadPool("test", PoolLimit(1))
    kept = ref(await threads.run(Large))
    await until(lambda: kept() is None)
    threads.close()


def test_garbage_is_collected_when_the_memory_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = [process_memory.GROWTH]
    collected: list[int] = []
    monkeypatch.setattr(process_memory, "rss", lambda: memory[-1])
    monkeypatch.setattr(gc, "collect", lambda: collected.append(memory[-1]))
    monkeypatch.setattr(process_memory, "CHECK_INTERVAL", 0.0)
    watch = process_memory.MemoryWatch()
    for more in (0, 1, 2):
        memory.append(2 * process_memory.GROWTH + more)
        watch.check(now=0.0)
    assert collected == [2 * process_memory.GROWTH + 1], "once, until it has grown as much again"
