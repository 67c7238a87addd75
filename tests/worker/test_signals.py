"""Signals end worker processes with short, long and stuck jobs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dayjob import Job, JobState
from dayjob.runtime.clock import SYSTEM, block
from tests.cli.processes import ROOT, Command, Start, eventually, starting, with_broker
from tests.worker.shutdown_jobs import DIARY, URL, build

pytestmark = pytest.mark.slow

APP = "tests.worker.shutdown_jobs:app"
IMPATIENT = (
    "-c",
    "import sys, dayjob.cli.worker.stop_signals as signals; signals.KILL_AFTER = 0.5; "
    "from dayjob.cli.main import main; main()",
)
"""``dayjob`` with a short time between the shutdown timeout and the exit of the process."""

FEW = 15.0
"""Seconds that an exit may take in addition to its waits, on a busy machine."""


class Scene:
    """A store, its workers, and the event log that their jobs write."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.url = f"sqlite:///{folder}/jobs.db"
        self.diary = folder / "diary"
        self._start = start

    def worker(self, *options: str, program: Sequence[str] = ("-m", "dayjob")) -> Command:
        return self._start(APP, *options, program=program)

    def enqueue(self, task: str, count: int, max_attempts: int = 3) -> list[str]:
        async def enqueueing() -> list[str]:
            async with build(self.url) as app:
                using = app.tasks[task].using(max_attempts=max_attempts)
                return [handle.id for handle in await using.aenqueue_many([()] * count)]

        return asyncio.run(enqueueing())

    def jobs(self, ids: list[str]) -> list[Job]:
        async def reading(broker):
            return [await broker.get(id) for id in ids]

        return with_broker(self.url, reading)

    def logged(self, event: str, pid: int | None = None) -> list[str]:
        """Return the ids of the jobs that logged the event, in that process or in any."""
        if not self.diary.exists():
            return []
        lines = [line.split() for line in self.diary.read_text().splitlines()]
        return [id for name, id, by in lines if name == event and pid in (None, int(by))]

    def until_logged(self, event: str, times: int, pid: int | None = None) -> None:
        eventually(lambda: len(self.logged(event, pid)) >= times, f"{event} x {times}")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    environment = {URL: f"sqlite:///{tmp_path}/jobs.db", DIARY: str(tmp_path / "diary")}
    with starting(ROOT, tmp_path, environment) as start:
        yield Scene(tmp_path, start)


def assert_released(jobs: list[Job]) -> None:
    """Check that the jobs are pending and that their runs do not count."""
    assert [(job.state, job.attempts) for job in jobs] == [(JobState.PENDING, 0)] * len(jobs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_running_short_jobs_finish_and_waiting_jobs_stay(scene: Scene, number: signal.Signals) -> None:
    ids = scene.enqueue("short", 60)
    worker = scene.worker("-c", "5")
    scene.until_logged("finished", 5)
    worker.signal(number)
    assert worker.wait() == 0, worker.output()

    started, finished = scene.logged("started"), scene.logged("finished")
    assert sorted(started) == sorted(finished)
    assert len(finished) < 60
    for job in scene.jobs(ids):
        expected = (JobState.DONE, 1) if job.id in finished else (JobState.PENDING, 0)
        assert (job.state, job.attempts) == expected
    stats = with_broker(scene.url, lambda broker: broker.stats("default"))
    assert (stats.done, stats.pending, stats.running) == (len(finished), 60 - len(finished), 0)

    assert scene.worker("--burst").wait() == 0
    assert sorted(scene.logged("finished")) == sorted(ids)


def test_long_jobs_are_signalled_at_once_and_released_uncounted_after_the_timeout(scene: Scene) -> None:
    ids = scene.enqueue("long", 3)
    worker = scene.worker("--shutdown-timeout", "1")
    scene.until_logged("started", 3)
    started_at = SYSTEM.elapsed()
    worker.signal(signal.SIGTERM)
    scene.until_logged("signalled", 3)
    assert worker.process.poll() is None, "the jobs were signalled before the timeout"
    assert worker.wait() == 0, worker.output()
    assert 1 <= SYSTEM.elapsed() - started_at < 1 + FEW
    assert_released(scene.jobs(ids))


def test_another_worker_claims_released_jobs_at_once(scene: Scene) -> None:
    ids = scene.enqueue("long", 2)
    first = scene.worker("--shutdown-timeout", "0.2")
    scene.until_logged("started", 2)
    second = scene.worker("--name", "second")
    second.wait_for_output("started")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0, first.output()
    ended = SYSTEM.elapsed()
    scene.until_logged("started", 2, pid=second.pid)
    assert SYSTEM.elapsed() - ended < 5, "the second worker was idle, and the jobs were there to be taken"
    now = [(job.state, job.attempts, str(job.worker)[:7]) for job in scene.jobs(ids)]
    assert now == [(JobState.RUNNING, 1, "second-")] * 2


@pytest.mark.parametrize("task", ["stuck", "leaning", "stubborn"])
def test_handlers_that_never_end_do_not_delay_the_exit(scene: Scene, task: str) -> None:
    ids = scene.enqueue(task, 40)
    worker = scene.worker("--shutdown-timeout", "0.5", "--threads", "40")
    scene.until_logged("started", 40)
    started_at = SYSTEM.elapsed()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.output()
    assert SYSTEM.elapsed() - started_at < 0.5 + FEW
    assert_released(scene.jobs(ids))


def test_a_thread_that_outlives_its_job_does_not_delay_the_exit(scene: Scene) -> None:
    (id,) = scene.enqueue("littering", 1)
    worker = scene.worker("--burst")
    assert worker.wait() == 0, worker.output()
    assert "are abandoned" in worker.output()
    assert scene.jobs([id])[0].state is JobState.DONE


def test_a_helper_that_a_job_forks_ends_by_sigterm_and_does_not_stop_the_worker(scene: Scene) -> None:
    (first,) = scene.enqueue("forking", 1)
    worker = scene.worker()
    scene.until_logged("terminated", 1)
    assert scene.logged("terminated") == [first]
    scene.enqueue("short", 1)
    scene.until_logged("finished", 1)
    assert worker.stop() == 0, worker.output()


def test_a_second_signal_stops_at_once(scene: Scene) -> None:
    ids = scene.enqueue("long", 3)
    worker = scene.worker("--shutdown-timeout", "600")
    scene.until_logged("started", 3)
    worker.signal(signal.SIGTERM)
    scene.until_logged("signalled", 3)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.output()
    assert_released(scene.jobs(ids))


def test_a_worker_whose_event_loop_is_blocked_exits_after_its_timeout(scene: Scene) -> None:
    """The process ends itself: nothing on the event loop can."""
    (id,) = scene.enqueue("blocking", 1)
    worker = scene.worker("--shutdown-timeout", "0.1", program=IMPATIENT)
    scene.until_logged("started", 1)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1, worker.output()
    assert "has not stopped in time: the process exits" in worker.output()
    assert scene.jobs([id])[0].state is JobState.RUNNING, "its lease ends it, or the next worker's reap duty"


def test_a_second_signal_ends_a_worker_whose_event_loop_is_blocked(scene: Scene) -> None:
    scene.enqueue("blocking", 1)
    worker = scene.worker("--shutdown-timeout", "600", program=IMPATIENT)
    scene.until_logged("started", 1)
    worker.signal(signal.SIGTERM)
    block(0.2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1, worker.output()


def test_system_exit_in_a_task_of_a_handler_fails_its_job_only(scene: Scene) -> None:
    (id,) = scene.enqueue("exiting", 1, max_attempts=1)
    others = scene.enqueue("short", 3)
    worker = scene.worker("--burst")
    assert worker.wait() == 0, worker.output()
    job = scene.jobs([id])[0]
    assert (job.state, str(job.last_error).splitlines()[0]) == (JobState.DEAD, "SystemExit: 0")
    assert {job.state for job in scene.jobs(others)} == {JobState.DONE}


def test_a_killed_workers_jobs_run_again_and_the_attempt_counts_until_they_are_dead(scene: Scene) -> None:
    (id,) = scene.enqueue("long", 1, max_attempts=2)
    for attempt in (1, 2):
        worker = scene.worker()
        scene.until_logged("started", 1, pid=worker.pid)
        job = scene.jobs([id])[0]
        assert (job.state, job.attempts) == (JobState.RUNNING, attempt)
        worker.kill()
    reaper = scene.worker()
    eventually(lambda: scene.jobs([id])[0].state is JobState.DEAD, "the job's end", reaper.output)
    job = scene.jobs([id])[0]
    assert (job.attempts, job.last_error) == (2, "lease expired")
    assert scene.logged("started", reaper.pid) == []
    assert reaper.stop() == 0
