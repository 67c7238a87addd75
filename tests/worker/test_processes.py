"""Tasks with ``pool="process"``: whatever happens to the process costs that attempt, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dayjob import App, Broker, Context, Job, JobState, NewJob
from dayjob.clock import SYSTEM
from dayjob.lifecycle import Event
from dayjob.stopping import Stop
from dayjob.worker.processes import ProcessPool
from tests.worker import process_tasks as tasks
from tests.worker.crew import record, run_until_idle, until, within, working

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LONG = "x" * 300_000
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
async def app(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setenv("PROCESS_TASKS_URL", url)
    monkeypatch.setattr(tasks.app, "url", url)
    yield tasks.app
    await tasks.app.close()


@pytest.fixture(autouse=True)
def nothing_left_behind(app: App) -> Iterator[None]:
    """Every child is reaped, with its threads, when its worker has ended."""
    yield
    assert [thread.name for thread in threading.enumerate() if app.name in thread.name] == []
    assert [line for line in _own_children() if "resource_tracker" not in line] == []


def _own_children() -> list[str]:
    asked = subprocess.run(
        ["ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    return [line for line in asked.stdout.splitlines() if " ps -ww" not in line]


async def done(app: App, *ids: str) -> list[Any]:
    """Run all that is there; the results of these jobs."""
    await run_until_idle(app)
    broker = await app.opened()
    jobs = [await record(broker, id) for id in ids]
    assert [(job.state, job.last_error) for job in jobs] == [(JobState.DONE, None)] * len(jobs)
    return [msgspec.json.decode(job.result or b"") for job in jobs]


async def after(app: App, id: str) -> Job:
    """The job's record after a worker had it."""
    await run_until_idle(app)
    return await record(await app.opened(), id)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def kill_and_wait(pid: int) -> None:
    """Return when the process has ended, leaving it to its parent to reap."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def started(broker: Broker, id: str) -> Job:
    """The job, once its handler has reported progress."""

    async def reported() -> bool:
        return (await record(broker, id)).progress is not None

    await until(reported)
    return await record(broker, id)


# Running.


async def test_arguments_are_rebuilt_and_the_context_is_there(app: App) -> None:
    id = UUID(int=5)
    handle = await tasks.describe.aenqueue(NOON, id, tasks.Place("Bern"), note="é")
    [told] = await done(app, handle.id)
    assert told.pop("pid") != os.getpid()
    assert told == {
        "kinds": ["datetime", "UUID", "Place"], "city": "Bern", "note": "é", "attempt": 1, "epoch": 1,
        "id": handle.id, "queue": "default",
    }  # fmt: skip
    assert (await handle.aresult(timeout=5))["city"] == "Bern"


async def test_a_child_is_warm_and_keeps_its_lifespan_but_not_a_runs_variables(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESS_TASKS_FAREWELLS", str(tmp_path))
    handles = [await tasks.visit.aenqueue() for _ in range(3)]
    await run_until_idle(app, concurrency=1)
    told = [await handle.aresult(timeout=5) for handle in handles]
    child = told[0][0]
    assert child != os.getpid()
    assert told == [(child, child, runs, 1) for runs in (1, 2, 3)]
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


async def test_raw_handlers_get_their_bytes(app: App) -> None:
    handle = await tasks.take.aenqueue(b"\x00\xff")
    await run_until_idle(app, queues=["raw"])
    assert await handle.aresult(timeout=5) == [0, 255]


async def test_the_tenants_scope_is_entered_in_the_child(app: App) -> None:
    handles = [await task.using(tenant="acme").aenqueue() for task in (tasks.whose, tasks.whose_async)] + [
        await tasks.whose.aenqueue()
    ]
    scoped, scoped_async, unscoped = await done(app, *(handle.id for handle in handles))
    for told in (scoped, scoped_async):
        assert told.startswith("acme in ")
        assert not told.endswith(f" {os.getpid()}")
    assert unscoped == "nobody"


async def test_a_scope_sees_the_handlers_error_and_its_own_is_the_jobs(app: App) -> None:
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


async def test_a_child_can_enqueue(app: App) -> None:
    handles = [await tasks.enqueue_more.aenqueue(), await tasks.enqueue_more_async.aenqueue()]
    more = await done(app, *(handle.id for handle in handles))
    broker = await app.opened()
    assert [(await record(broker, id)).state for id in more] == [JobState.DONE] * 2


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
    assert await done(app, succeeding.id) == [None], "what the middleware returns is the result"
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


async def test_the_time_limit_counts_from_when_a_child_has_the_job(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one child, the first job's time is up before the others' begins; they come to the same end."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    handles = [await tasks.limited.aenqueue() for _ in range(3)]
    started: list[float] = []
    take = ProcessPool.run

    async def noting(pool: ProcessPool, task: Any, context: Context, begun: Any = None) -> Any:
        def noted() -> None:
            started.append(SYSTEM.elapsed())
            begun()

        return await take(pool, task, context, noted)

    monkeypatch.setattr(ProcessPool, "run", noting)
    await run_until_idle(app)
    jobs = [await record(await app.opened(), handle.id) for handle in handles]
    assert all(str(job.last_error).startswith("TimeoutError: timed out after 0.5 s") for job in jobs)
    assert len(started) == 3, "each had its turn in a child"


async def test_large_arguments_and_results_pass(app: App) -> None:
    note = await tasks.describe.aenqueue(NOON, UUID(int=1), tasks.Place(LONG))
    big = await tasks.big.aenqueue(900_000)
    told, text = await done(app, note.id, big.id)
    assert (told["city"], len(text)) == (LONG, 900_000)


async def test_a_result_that_cant_be_kept_is_still_a_success(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await tasks.unkeepable.aenqueue()
    job = await after(app, handle.id)
    assert job.state is JobState.DONE
    assert "can't be kept" in caplog.text


# Failing.


async def test_an_exception_is_stored_with_its_traceback(app: App) -> None:
    job = await after(app, (await tasks.explode.aenqueue()).id)
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
    text = str(job.last_error)
    assert text.startswith("ValueError: the boiler is dry\n")
    assert "process_tasks.py" in text
    assert "dayjob/worker" not in text


async def test_retry_policies_see_the_exception_itself(app: App) -> None:
    one, other = await tasks.give_up.aenqueue(), await tasks.hopeless.aenqueue()
    job = await after(app, one.id)
    assert (job.state, job.attempts) == (JobState.DEAD, 2)
    job = await record(await app.opened(), other.id)
    assert job.state is JobState.SCHEDULED
    assert job.run_us - (job.errors[-1].at_us) == 7_000_000


@pytest.mark.parametrize("task", [tasks.end_by, tasks.end_by_async], ids=["def", "async"])
async def test_handlers_end_their_runs_as_they_like(app: App, task: Any) -> None:
    expected = {
        "dead letter": (JobState.DEAD, 1, "no such customer"),
        "later": (JobState.SCHEDULED, 1, "busy"),
        "snooze": (JobState.SCHEDULED, 0, "None"),
        "exit": (JobState.SCHEDULED, 1, "SystemExit: 3"),
        "interrupt": (JobState.SCHEDULED, 1, "KeyboardInterrupt"),
        "generator": (JobState.SCHEDULED, 1, "GeneratorExit"),
        "stop": (JobState.SCHEDULED, 1, "RuntimeError" if task.is_async else "StopIteration"),
    }
    ids = {way: (await task.aenqueue(way)).id for way in expected}
    await run_until_idle(app)
    broker = await app.opened()
    for way, (state, attempts, error) in expected.items():
        job = await record(broker, ids[way])
        assert (way, job.state, job.attempts) == (way, state, attempts)
        assert str(job.last_error).startswith(error)


async def test_a_payload_that_doesnt_fit_is_dead_at_once(app: App) -> None:
    broker = await app.opened()
    enqueued = await broker.enqueue_job(NewJob("default", b'{"size": "tall"}', task=tasks.big.name))
    job = await after(app, enqueued.id)
    assert job.state is JobState.DEAD
    assert str(job.last_error).startswith("BadPayload: the payload doesn't fit")


async def test_a_task_inside_a_function_is_dead_with_the_remedy(app: App) -> None:
    @app.task(pool="process")
    def inner() -> None: ...

    try:
        job = await after(app, (await inner.aenqueue()).id)
    finally:
        del app.tasks[inner.name]
    assert job.state is JobState.DEAD
    assert "inner' is not known in a child process" in str(job.last_error)
    assert "define it at the top level" in str(job.last_error)


async def test_a_module_that_cant_be_imported_is_dead_with_the_remedy(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("only_here")
    exec("def lonely() -> None: ...", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    lonely: Callable[[], None] = module.__dict__["lonely"]
    task = app.task(pool="process")(lonely)
    try:
        job = await after(app, (await task.aenqueue()).id)
    finally:
        del app.tasks[task.name]
    assert job.state is JobState.DEAD
    text = str(job.last_error)
    assert text.startswith("the module 'only_here' of task 'only_here.lonely' can't be imported")
    assert "No module named 'only_here'" in text


# Dying.


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("exit", "the process running it ended with exit code 1"),
        ("null", "the process running it was killed by signal 11 (SIGSEGV)"),
        ("SIGABRT", f"the process running it was killed by signal {signal.SIGABRT:d} (SIGABRT)"),
        ("SIGKILL", "the process running it was killed by signal 9 (SIGKILL) (out of memory?)"),
    ],
)
async def test_the_end_of_a_process_costs_that_attempt_only(app: App, way: str, reason: str) -> None:
    ids = [(await tasks.die.aenqueue(way)).id, *[(await tasks.pid.aenqueue()).id for _ in range(2)]]
    worker = await run_until_idle(app)
    broker = await app.opened()
    died, *others = [await record(broker, id) for id in ids]
    assert (died.state, died.attempts) == (JobState.SCHEDULED, 1)
    assert str(died.last_error) == f"dayjob.worker.processes.ProcessDied: {reason}"
    assert [(job.state, job.attempts) for job in others] == [(JobState.DONE, 1)] * 2
    assert worker.done == 3


async def test_a_retry_policy_may_give_up_on_a_dead_process(app: App) -> None:
    job = await after(app, (await tasks.die_for_good.aenqueue()).id)
    assert (job.state, job.attempts) == (JobState.DEAD, 1)
    assert "exit code 7" in str(job.last_error)


async def test_an_idle_child_that_is_killed_costs_nobody_an_attempt(app: App) -> None:
    async with working(app, concurrency=1):
        child = await (await tasks.pid.aenqueue()).aresult(timeout=20)
        os.kill(child, signal.SIGKILL)
        handle = await tasks.pid.aenqueue()
        assert await handle.aresult(timeout=20) != child
    assert (await record(await app.opened(), handle.id)).attempts == 1


async def test_a_child_shrugs_off_the_workers_signals(app: App) -> None:
    assert await done(app, (await tasks.shrug_off.aenqueue()).id) == ["still here"]


async def test_a_timeout_kills_the_process(app: App) -> None:
    async with working(app, concurrency=1):
        child = await (await tasks.pid.aenqueue()).aresult(timeout=20)
        id = (await tasks.limited.aenqueue()).id
        broker = await app.opened()

        async def failed() -> bool:
            return (await record(broker, id)).last_error is not None

        await until(failed)
        await until(lambda: gone(child))
        job = await record(broker, id)
        assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
        assert str(job.last_error) == "TimeoutError: timed out after 0.5 s"
        assert await (await tasks.pid.aenqueue()).aresult(timeout=20) != child


async def test_what_a_killed_process_has_started_ends_with_it(app: App, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = asyncio.create_task(asyncio.to_thread(fifo.read_bytes))
    await tasks.pid.aenqueue()  # So that the next one finds a warm child.
    id = (await tasks.leave_a_process.aenqueue(str(fifo))).id
    await run_until_idle(app, concurrency=1)
    assert "timed out" in str((await record(await app.opened(), id)).last_error)
    assert await within(reading) == b""


async def test_a_cancel_from_elsewhere_interrupts_by_a_kill(app: App, url: str) -> None:
    async with Broker(url) as elsewhere, working(app):
        handle = await tasks.interruptible.aenqueue()
        job = await started(elsewhere, handle.id)
        child = int((job.progress or (0, "0"))[1])
        assert not gone(child)
        await elsewhere.cancel(handle.id)
        waited = await within(elsewhere.wait(handle.id, timeout=15))
        assert waited.job is not None
        assert waited.job.state is JobState.CANCELLED
        await until(lambda: gone(child))


async def test_progress_logs_and_a_cancel_pass_between_worker_and_child(
    app: App, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dayjob.job")
    async with Broker(url) as elsewhere, working(app):
        handle = await tasks.report.aenqueue()
        job = await started(elsewhere, handle.id)
        assert job.progress == (0.5, "half ?")
        await elsewhere.cancel(handle.id)
        waited = await within(elsewhere.wait(handle.id, timeout=15))
    assert waited.job is not None
    assert waited.job.state is JobState.CANCELLED
    [logged] = [entry for entry in caplog.records if entry.name == "dayjob.job"]
    assert logged.getMessage() == "halfway there"
    assert logged.__dict__["job_id"] == handle.id


@asynccontextmanager
async def pool_of_one(app: App) -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(app, 1)
    try:
        yield pool
    finally:
        await pool.close()


async def claimed(app: App, task: Any) -> Context:
    await task.aenqueue()
    [job] = await (await app.opened()).claim(["default"])
    return Context(job, shutting_down=Stop())


async def test_a_child_may_die_at_any_moment_between_two_jobs(app: App) -> None:
    loop = asyncio.get_running_loop()
    async with pool_of_one(app) as pool:
        context = await claimed(app, tasks.pid)
        for steps in range(6):
            settlement = await within(pool.run(tasks.pid, context))
            child = int(settlement.result or b"0")
            kill_and_wait(child)
            for _ in range(steps):
                step = loop.create_future()
                loop.call_soon(step.set_result, None)
                await step
        assert (await within(pool.run(tasks.pid, context))).event is Event.ACK


async def test_a_cancel_during_the_wait_for_a_child_reaches_the_handler(app: App) -> None:
    async with pool_of_one(app) as pool:
        first, second = await claimed(app, tasks.report), await claimed(app, tasks.report)
        running = [asyncio.create_task(pool.run(tasks.report, context)) for context in (first, second)]
        await until(lambda: not running[0].done())
        second.cancelled.set("lost")
        first.cancelled.set("lost")
        for run in running:
            assert (await within(run)).result == b'"lost"'


async def test_the_wait_for_a_child_is_told_from_the_run(app: App) -> None:
    told: list[str] = []
    async with pool_of_one(app) as pool:
        running = []
        for task in (tasks.pid, tasks.whose):
            run = pool.run(task, await claimed(app, task), partial(told.append, task.name))
            running.append(asyncio.create_task(run))
        assert told == []
        await within(running[0])
        assert told == [tasks.pid.name]
        await within(running[1])
        assert told == [tasks.pid.name, tasks.whose.name]


# Stopping.


async def test_a_stopping_worker_tells_the_handler(app: App) -> None:
    async with working(app):
        handle = await tasks.wait_for_shutdown.aenqueue()
        await started(await app.opened(), handle.id)
    job = await record(await app.opened(), handle.id)
    assert (job.state, job.result) == (JobState.DONE, b'"shutdown"')


async def test_a_job_that_wont_end_is_killed_and_released_uncounted(app: App) -> None:
    async with working(app, shutdown_timeout=0.1):
        handle = await tasks.stalling.aenqueue()
        job = await started(await app.opened(), handle.id)
    job = await record(await app.opened(), handle.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 0, None)


async def test_a_worker_without_process_tasks_starts_none(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dayjob.worker.processes._spawn", None)
    await run_until_idle(app)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
async def test_no_descriptors_are_left_over(app: App) -> None:
    counts = []
    for _ in range(3):
        for task in (tasks.die_for_good, tasks.die_for_good, tasks.pid):
            await task.aenqueue()
        await run_until_idle(app)
        await app.close()
        counts.append(descriptors())
    assert counts[1] == counts[2]


# Scripts.

SCRIPT = """
import asyncio, os, sys, threading
from dayjob import App, Context, Worker

app = App(sys.argv[1])

@app.task(pool="process")
def double(number: int) -> int:
    assert __name__ != "__main__"
    return 2 * number

@app.task(pool="process")
def stall() -> None:
    print(os.getpid(), flush=True)
    threading.Event().wait()
"""

GUARDED = """
if __name__ == "__main__":
    handle = double.enqueue(21)
    asyncio.run(Worker(app).run_until_idle())
    print(handle.result(timeout=10))
"""

UNGUARDED = """
if __name__ == "__main__":
    handle = double.enqueue(21)
asyncio.run(Worker(app).run_until_idle())
print(app.call(lambda: app.broker.get(handle.id)).last_error)
"""

STALLING = """
if __name__ == "__main__":
    stall.enqueue()
    asyncio.run(Worker(app).run())
"""

IDLING = """
@app.on("job.succeeded")
def tell(event):
    print(event, flush=True)

if __name__ == "__main__":
    double.enqueue(1)
    asyncio.run(Worker(app).run())
"""


def script(tmp_path: Path, text: str, url: str) -> list[str]:
    file = tmp_path / "errands.py"
    file.write_text(SCRIPT + text)
    return [sys.executable, str(file), url]


async def run_script(command: list[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=ROOT
    )
    try:
        output, _ = await within(process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode()


async def test_a_scripts_own_tasks_run_in_children(tmp_path: Path, url: str) -> None:
    assert await run_script(script(tmp_path, GUARDED, url)) == "42\n"


async def test_a_script_without_a_guard_is_told(tmp_path: Path, url: str) -> None:
    told = await run_script(script(tmp_path, UNGUARDED, url))
    assert "ended with exit code 1 before it could take the job" in told
    assert 'put `if __name__ == "__main__":` before' in told


@pytest.mark.parametrize("text", [STALLING, IDLING], ids=["busy", "idle"])
async def test_no_child_outlives_a_killed_worker(tmp_path: Path, url: str, text: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *script(tmp_path, text, url), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        assert await within(process.stdout.readline())
    finally:
        process.kill()
        await process.wait()
    # The pipe ends when nobody holds it any more: neither the worker, nor a child of it.
    assert await within(process.stdout.read()) == b""
