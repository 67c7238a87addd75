"""Tasks with ``pool="process"``: arguments, context, middleware, follow-ups, results."""

from __future__ import annotations

import asyncio
import importlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dayjob import App, Context, JobState
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.stop_signal import StopSignal
from dayjob.worker.process_pool import ProcessPool
from tests.support.workers import pause, record, run_until_idle, until, with_timeout, working
from tests.worker import process_tasks as tasks
from tests.worker.processes.observe import (
    after,
    done,
)

pytestmark = pytest.mark.slow

LONG = "x" * 300_000
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def test_arguments_are_rebuilt_and_the_context_is_passed(app: App) -> None:
    id = UUID(int=5)
    handle = await tasks.describe.aenqueue(NOON, id, tasks.Place("Bern"), note="é")
    [result] = await done(app, handle.id)
    job = await record(app.broker, handle.id)
    assert result.pop("pid") != os.getpid()
    assert result == {
        "kinds": ["datetime", "UUID", "Place"], "city": "Bern", "note": "é", "attempt": 1, "epoch": job.epoch,
        "id": handle.id, "queue": "default",
    }  # fmt: skip
    assert (await handle.aresult(timeout=5))["city"] == "Bern"


async def test_a_child_is_reused_with_its_lifespan_but_without_a_runs_variables(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESS_TASKS_FAREWELLS", str(tmp_path))
    handles = [await tasks.visit.aenqueue() for _ in range(3)]
    await run_until_idle(app, concurrency=1)
    result = [await handle.aresult(timeout=5) for handle in handles]
    child = result[0][0]
    assert child != os.getpid()
    assert result == [(child, child, runs, 1) for runs in (1, 2, 3)]
    assert (tmp_path / str(child)).exists(), "the child did not leave its lifespan"


async def test_jobs_run_in_several_children_at_once(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    one, other = await tasks.meet.aenqueue(fifo, "r"), await tasks.meet.aenqueue(fifo, "w")
    pids = await done(app, one.id, other.id)
    assert len(set(pids)) == 2


async def test_more_jobs_than_children_wait_their_turn(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    handles = [await tasks.pid.aenqueue() for _ in range(20)]
    assert len(set(await done(app, *(handle.id for handle in handles)))) <= 2


async def test_jobs_that_wait_for_a_child_use_no_slot_and_are_given_back(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.worker.worker.MAX_WAIT", 0.1)
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    handles = [await tasks.meet.aenqueue(fifo, "r") for _ in range(3)]
    async with working(app, pool_processes=1) as worker:

        async def given_back() -> bool:
            return (await (await app.opened()).stats("default")).pending == 2

        await until(given_back)
        assert len(worker._slots.tasks) == 1
        gate = os.open(fifo, os.O_RDWR)  # It does not block, and no reader does from now on.
        try:
            for handle in handles:
                await with_timeout(handle.await_end())
        finally:
            os.close(gate)
    jobs = [await record(await app.opened(), handle.id) for handle in handles]
    assert [job.attempts for job in jobs] == [1, 1, 1]


async def test_raw_handlers_get_the_payload_as_bytes(app: App) -> None:
    handle = await tasks.take.aenqueue(b"\x00\xff")
    await run_until_idle(app, queues=["raw"])
    assert await handle.aresult(timeout=5) == [0, 255]


async def test_the_tenants_scope_is_entered_in_the_child(app: App) -> None:
    handles = [await task.using(tenant="acme").aenqueue() for task in (tasks.whose, tasks.whose_async)] + [
        await tasks.whose.aenqueue()
    ]
    scoped, scoped_async, unscoped = await done(app, *(handle.id for handle in handles))
    for result in (scoped, scoped_async):
        assert result.startswith("acme in ")
        assert not result.endswith(f" {os.getpid()}")
    assert unscoped == "none"


async def test_a_scope_sees_the_handlers_error_and_an_error_of_the_scope_fails_the_job(app: App) -> None:
    seen = await tasks.fail_in_scope.using(tenant="acme").aenqueue()
    unknown = await tasks.whose.using(tenant="stranger").aenqueue()
    job = await after(app, seen.id)
    assert (job.state, job.last_error) == (JobState.DEAD, "the scope saw KeyError('inside')")
    job = await record(await app.opened(), unknown.id)
    assert job.state is JobState.SCHEDULED
    assert str(job.last_error).startswith("dayjob.errors.TenantNotFound: stranger")


async def test_follow_ups_commit_with_the_success_only(app: App) -> None:
    refused = await tasks.lead.aenqueue(False)
    assert (await after(app, refused.id)).state is JobState.SCHEDULED
    broker = await app.opened()
    assert (await broker.stats("default")).done == 0
    assert await broker.kv_get(b"led") is None
    led = await tasks.lead.aenqueue(True)
    await done(app, led.id)
    assert (await broker.stats("default")).done == 2
    assert await broker.kv_get(b"led") == b"\xff"
    [later] = [job for job in await broker.jobs(state="scheduled") if job.task == tasks.pid.name]
    assert 3500 < (later.run_at - later.enqueued_at).total_seconds() < 3700
    assert later.expires_at is not None
    first, second = await led.aresult(timeout=0)
    assert (await record(broker, first)).state is JobState.DONE
    assert second == later.id


async def test_a_child_can_enqueue(app: App) -> None:
    handles = [await tasks.enqueue_more.aenqueue(), await tasks.enqueue_more_async.aenqueue()]
    more = await done(app, *(handle.id for handle in handles))
    broker = await app.opened()
    assert [(await record(broker, id)).state for id in more] == [JobState.DONE] * 2


async def test_a_child_that_starts_in_another_folder_uses_the_file_of_its_worker(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL in its own App is relative to that folder, which a job may have changed by ``os.chdir``."""
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.setenv("PROCESS_TASKS_URL", "sqlite:///jobs.db")
    monkeypatch.chdir(there)
    handle = await tasks.enqueue_more.aenqueue()
    [more] = await done(app, handle.id)
    assert (await record(await app.opened(), more)).state is JobState.DONE


async def test_middleware_runs_in_the_worker(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    async def middleware(ctx: Any, call_next: Any) -> Any:
        ran.append((ctx.job.id, os.getpid()))
        return await call_next()

    monkeypatch.setattr(app, "middleware", (middleware,))
    handle = await tasks.pid.aenqueue()
    await done(app, handle.id)
    assert ran == [(handle.id, os.getpid())]


async def test_middleware_sees_results_and_failures_of_children(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def middleware(ctx: Any, call_next: Any) -> Any:
        try:
            seen.append(await call_next())
        except Exception as error:
            seen.append(str(error))
            raise

    monkeypatch.setattr(app, "middleware", (middleware,))
    succeeding, failing = await tasks.pid.aenqueue(), await tasks.explode.aenqueue()
    assert await done(app, succeeding.id) == [None], "the return value of the middleware is the result"
    job = await record(await app.opened(), failing.id)
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
    number, text = sorted(seen, key=str)
    assert isinstance(number, int)
    assert "the boiler is dry" in text


async def test_follow_ups_survive_the_middleware(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def middleware(ctx: Any, call_next: Any) -> Any:
        await call_next()

    monkeypatch.setattr(app, "middleware", (middleware,))
    await done(app, (await tasks.lead.aenqueue(True)).id)
    assert await (await app.opened()).kv_get(b"led") == b"\xff"


async def test_the_timeout_starts_when_a_child_has_started_the_job(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one child, the first job times out before the timeouts of the others start."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    handles = [await tasks.limited.aenqueue() for _ in range(3)]
    started: list[float] = []
    take = ProcessPool.run

    async def recording(pool: ProcessPool, task: Any, context: Context, on_start: Any = None) -> Any:
        def record_start() -> None:
            started.append(SYSTEM.elapsed())
            on_start()

        return await take(pool, task, context, record_start)

    monkeypatch.setattr(ProcessPool, "run", recording)
    await run_until_idle(app)
    jobs = [await record(await app.opened(), handle.id) for handle in handles]
    assert all(str(job.last_error).startswith("TimeoutError: timed out after 0.5 s") for job in jobs)
    assert len(started) == 3, "each had its turn in a child"


SLOW_TO_IMPORT = """
import os
from contextlib import asynccontextmanager
from dayjob import App

def pass_gate(name):
    if os.environ["IMPORTED_BY"] != str(os.getpid()):
        open(os.path.join(os.path.dirname(__file__), name)).read()

@asynccontextmanager
async def lifespan(app):
    pass_gate("lifespan")
    yield

pass_gate("import")
app = App("memory://", lifespan=lifespan)

@app.task(pool="process", timeout=1)
def predict() -> int:
    return 1
"""


async def test_the_timeout_starts_after_the_import_and_the_lifespan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW_TO_IMPORT)
    monkeypatch.setenv("IMPORTED_BY", str(os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)
    slow = importlib.import_module("slow_to_import")
    for gate in ("import", "lifespan"):
        os.mkfifo(tmp_path / gate)
    started: list[bool] = []
    await slow.predict.aenqueue()
    [job] = await (await slow.app.opened()).claim(["default"])
    pool = ProcessPool(slow.app, 1)
    try:
        context = Context(job, shutting_down=StopSignal())
        running = asyncio.create_task(pool.run(slow.predict, context, lambda: started.append(True)))
        for gate in ("import", "lifespan"):
            opened = await with_timeout(asyncio.to_thread(os.open, tmp_path / gate, os.O_WRONLY))
            await pause(0.2)
            assert started == [], f"the timeout started before the {gate}"
            os.close(opened)
        assert (await with_timeout(running)).result == b"1"
        assert started == [True]
    finally:
        await pool.close()
        await slow.app.close()


async def test_large_arguments_and_results_pass(app: App) -> None:
    note = await tasks.describe.aenqueue(NOON, UUID(int=1), tasks.Place(LONG))
    big = await tasks.big.aenqueue(900_000)
    result, text = await done(app, note.id, big.id)
    assert (result["city"], len(text)) == (LONG, 900_000)


async def test_a_result_that_can_not_be_stored_leaves_the_job_done(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await tasks.unkeepable.aenqueue()
    job = await after(app, handle.id)
    assert job.state is JobState.DONE
    assert "can't be stored" in caplog.text
