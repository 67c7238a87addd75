"""An app opens on first use, and works in threads, event loops and forked children."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dayjob import (
    App,
    Broker,
    BrokerConfig,
    Closed,
    ConfigError,
    InvalidState,
    JobHandle,
    JobState,
    QueueConfig,
    Retention,
    Task,
    Waited,
    Worker,
)
from tests.support.app_runs import ajobs, arun, job, jobs, run
from tests.support.bound import BOUND


class Adding:
    """An app with a task that records its arguments."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.got: list[int] = []
        self.task: Task[[int], int, int] = app.task(name="keep")(self.keep)

    def keep(self, value: int) -> int:
        self.got.append(value)
        return value


@pytest.fixture
def adding(url: str) -> Iterator[Adding]:
    """An app that is not open."""
    app = App(url)
    yield Adding(app)
    with app:
        pass


def test_an_app_opens_on_first_use(adding: Adding) -> None:
    handle = adding.task.enqueue(1)
    assert handle.status() is JobState.PENDING
    run(adding.app)
    assert handle.result(timeout=0) == 1


def test_creating_an_app_does_not_open_the_storage(tmp_path: Path) -> None:
    App(f"sqlite:///{tmp_path}/jobs.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "text"),
    [("nothing://x", "nothing"), ("jobs.db", "jobs.db"), ("sqlite:///x?colour=red", "colour"), (5, "5")],
)
def test_an_invalid_url_is_refused_when_the_app_is_created(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        App(url)


async def test_an_app_opens_on_first_use_on_an_event_loop(adding: Adding) -> None:
    handle = await adding.task.aenqueue(1)
    assert await handle.astatus() is JobState.PENDING
    await arun(adding.app)
    assert await handle.aresult(timeout=0) == 1
    await adding.app.close()


async def test_async_with_opens_and_closes(adding: Adding) -> None:
    async with adding.app as app:
        assert app is adding.app
        assert app.broker.is_open
        broker = app.broker
        await adding.task.aenqueue(1)
    assert not broker.is_open
    await adding.task.aenqueue(2)  # It opens again on use.
    assert len(await ajobs(adding.app)) == 2
    await adding.app.close()


def test_with_opens_and_closes(adding: Adding) -> None:
    before = set(threading.enumerate())
    with adding.app as app:
        assert app is adding.app
        adding.task.enqueue(1)
        broker = app.broker
        assert broker.is_open
    assert not broker.is_open
    for thread in set(threading.enumerate()) - before:
        thread.join(BOUND)
        assert not thread.is_alive()
    adding.task.enqueue(2)
    assert len(jobs(adding.app)) == 2


def test_the_broker_underneath_has_the_jobs(adding: Adding) -> None:
    adding.task.enqueue(1)
    assert isinstance(adding.app.broker, Broker)

    async def look() -> int:
        async with adding.app:
            return (await adding.app.broker.stats("default")).pending

    assert asyncio.run(look()) == 1


def test_synchronous_and_asynchronous_code_and_the_worker_share_one_store(adding: Adding) -> None:
    async def both() -> None:
        await adding.task.aenqueue(2)

    first = adding.task.enqueue(1)
    asyncio.run(both())
    run(adding.app)
    assert adding.got == [1, 2]
    assert first.result(timeout=0) == 1


def test_enqueued_jobs_stay_after_the_app_closes(adding: Adding) -> None:
    with adding.app:
        handle = adding.task.enqueue(1)
    run(adding.app)
    assert adding.got == [1]
    assert handle.result(timeout=0) == 1


def test_two_private_memory_apps_share_nothing() -> None:
    with App("memory://") as one, App("memory://") as other:
        Adding(one).task.enqueue(1)
        assert len(jobs(one)) == 1
        assert jobs(other) == []


def test_many_threads_use_an_app_concurrently_from_the_first_call(adding: Adding) -> None:
    barrier = threading.Barrier(16)

    def enqueue(number: int) -> str:
        barrier.wait(BOUND)
        return [adding.task.enqueue(number * 100 + step).id for step in range(10)][-1]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(enqueue, range(16)))
    assert len(jobs(adding.app)) == 160
    run(adding.app)
    assert sorted(adding.got) == sorted(number * 100 + step for number in range(16) for step in range(10))


async def test_threads_of_a_loops_executor_use_an_app(adding: Adding) -> None:
    await adding.task.aenqueue(0)
    handles = await asyncio.gather(
        *(asyncio.to_thread(adding.task.enqueue, number) for number in range(1, 20))
    )
    await arun(adding.app)
    assert sorted(adding.got) == list(range(20))
    assert await asyncio.to_thread(handles[0].result, 5) == 1
    await adding.app.close()


def test_two_event_loops_in_two_threads_use_an_app(adding: Adding) -> None:
    barrier = threading.Barrier(2)

    async def enqueue(start: int) -> None:
        async with adding.app:
            barrier.wait(BOUND)
            await asyncio.gather(*(adding.task.aenqueue(start + step) for step in range(20)))

    threads = [threading.Thread(target=lambda start=start: asyncio.run(enqueue(start))) for start in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert len(jobs(adding.app)) == 40


def test_brokers_of_closed_event_loops_are_closed(adding: Adding) -> None:
    async def enqueue(number: int) -> None:
        await adding.task.aenqueue(number)  # and does not close

    asyncio.run(enqueue(0))
    before = set(threading.enumerate())
    for number in range(1, 10):
        asyncio.run(enqueue(number))
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(2 / len(left))
    assert sum(thread.is_alive() for thread in left) <= len(before)  # Those of the last loop.
    assert len(jobs(adding.app)) == 10


@pytest.mark.parametrize("used_before", [False, True])
async def test_a_synchronous_call_on_an_event_loop_raises_with_the_remedy(
    adding: Adding, used_before: bool
) -> None:
    if not used_before:
        with pytest.raises(InvalidState, match="use aenqueue"):
            adding.task.enqueue(1)
        with pytest.raises(InvalidState, match="async methods"), adding.app:
            pass
    async with adding.app:
        with pytest.raises(InvalidState, match="use aenqueue"):
            adding.task.enqueue(1)
        with pytest.raises(InvalidState, match="use aenqueue"):
            adding.task.enqueue_many([(1,)])
        handle = await adding.task.aenqueue(1)
        for call in (handle.status, handle.cancel, handle.wait, handle.result):
            with pytest.raises(InvalidState, match="async methods"):
                call()
        with pytest.raises(InvalidState, match="async methods"), adding.app:
            pass
        assert len(await ajobs(adding.app)) == 1


async def test_a_coroutine_task_that_calls_sync_enqueue_raises_with_the_remedy(adding: Adding) -> None:
    @adding.app.task(max_attempts=1)
    async def outer() -> None:
        adding.task.enqueue(1)

    @adding.app.task
    def threaded() -> None:
        adding.task.enqueue(2)

    async with adding.app:
        refused = await outer.aenqueue()
        fine = await threaded.aenqueue()
        await arun(adding.app)
        outcome = (await refused.await_end()).job
        assert outcome is not None
        assert "use aenqueue" in (outcome.last_error or "")
        assert await fine.astatus() is JobState.DONE
    assert adding.got == [2]


def test_an_app_is_usable_after_an_interrupted_call(adding: Adding) -> None:
    handle = adding.task.enqueue(1)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    assert handle.status() is JobState.PENDING


@pytest.mark.parametrize("method", ["wait", "result"])
def test_closing_an_app_wakes_the_threads_that_wait_on_it(
    adding: Adding, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    await_end = JobHandle.await_end

    async def signalled(handle: JobHandle[Any], timeout: Any = None) -> Waited:
        waiting.set()
        return await await_end(handle, timeout)

    monkeypatch.setattr(JobHandle, "await_end", signalled)
    with ThreadPoolExecutor(1) as pool:
        with adding.app:
            call = pool.submit(getattr(adding.task.enqueue(1), method))
            assert waiting.wait(BOUND)
        with pytest.raises(Closed):
            call.result(20)


FORK = """\
import os, sys
from dayjob import App

app = App("sqlite:///jobs.db")

@app.task(name="t")
def keep(value: int) -> None: ...

def children(count):
    pids = []
    for child in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                for step in range(10):
                    keep.enqueue(1000 * (child + 1) + step)
                assert keep.enqueue(1).status() == "pending"
            except BaseException as error:
                print("child", repr(error), file=sys.stderr)
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    return pids

keep.enqueue(1)
pids = children(3)
for step in range(10):
    keep.enqueue(step)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
keep.enqueue(2)
with app:
    print(app.call(lambda: app.broker.stats("default")).pending)
"""


def test_a_parent_and_its_forked_children_can_all_enqueue(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == 1 + 3 * 11 + 10 + 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_script_that_does_not_close_its_app_exits_without_errors(tmp_path: Path) -> None:
    script = FORK.split("def children")[0] + "keep.enqueue(1)\n"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=BOUND,
    )  # fmt: skip
    errors = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, errors) == (0, []), "asyncio's warnings about slow callbacks do not count"


KEPT = {
    "default": (None, 3600),
    "a configuration": (BrokerConfig(max_payload=1000), 3600),
    "a retention without done": (BrokerConfig(retention=Retention(dead=5)), 3600),
    "a default queue": (BrokerConfig(default=QueueConfig(retention=Retention(dead=5))), 3600),
    "a queue": (BrokerConfig(queues={"default": QueueConfig(retention=Retention(dead=5))}), 3600),
    "done": (BrokerConfig(retention=Retention(done=60)), 60),
    "done of the queue": (BrokerConfig(queues={"default": QueueConfig(retention=Retention(done=60))}), 60),
}


@pytest.mark.parametrize(("config", "seconds"), KEPT.values(), ids=KEPT.keys())
def test_done_jobs_are_kept_for_an_hour_by_default(
    url: str, config: BrokerConfig | None, seconds: int
) -> None:
    with App(url, config=config) as app:
        Adding(app).task.enqueue(1)
        run(app)
        assert job(app).state is JobState.DONE
        kept = app.config.queue("default").retention or app.config.retention
        assert kept.done == (timedelta(hours=1) if seconds == 3600 else seconds)


def test_retention_done_zero_keeps_no_done_jobs(url: str) -> None:
    with App(url, config=BrokerConfig(retention=Retention(done=0))) as app:
        handle = Adding(app).task.enqueue(1)
        run(app)
        assert handle.status() is None
        assert jobs(app) == []


def test_a_task_may_have_its_own_retention(url: str) -> None:
    with App(url) as app:
        adding = Adding(app)
        gone = app.task(name="gone", retention=Retention(done=0))(adding.keep)
        longer = app.task(name="longer", retention=Retention(dead=None))(adding.keep)
        first, second = gone.enqueue(1), longer.enqueue(2)
        run(app)
        assert first.status() is None
        assert second.result(timeout=0) == 2


async def test_a_producer_runs_no_duties_and_a_worker_does(adding: Adding) -> None:
    async with adding.app:
        await adding.task.using(delay=0.001).aenqueue(1)
        worker = Worker(adding.app)
        adding.app.on("job.succeeded")(lambda event: worker.stop())
        await asyncio.wait_for(worker.run(), 20)
    assert adding.got == [1]


def test_the_repr_of_an_app_has_its_url_and_number_of_tasks() -> None:
    app = App("sqlite:////var/some.db", name="shop")
    Adding(app)
    assert repr(app) == "App('sqlite:////var/some.db', name='shop', tasks=1)"
