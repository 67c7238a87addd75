"""The demo adds up, says so when it does not, and leaves nothing behind however it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from dayjob import Broker, Job, JobState, QueueStats
from dayjob.cli import demo as module
from dayjob.cli import main
from dayjob.cli.demo_jobs import Planned, exports, plan
from dayjob.cli.demo_reckoning import Accepted, Reckoning, reckon, was_held_by
from dayjob.cli.demo_tasks import EMAIL, POISON, QUEUES, REMINDER, make_app
from dayjob.model.job import Failure, id_text
from dayjob.runtime.clock import SYSTEM, block
from dayjob.runtime.ids import new_key

BOUND = 60.0
APP = make_app("memory://")


def demo_command(*arguments: str) -> list[str]:
    """Whoever runs the tests may ignore Ctrl-C, as shells do for what runs in the background."""
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from dayjob.cli import main; main(prog_name='dayjob')"
    )
    return [sys.executable, "-c", start, "demo", *arguments]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}


# The whole of it.


@pytest.mark.slow
def test_the_demo_adds_up_and_removes_its_files(tmp_path: Path) -> None:
    finished = subprocess.run(
        demo_command("--jobs", "300"), env=environment(tmp_path), capture_output=True, text=True,
        timeout=BOUND,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    sums = re.search(
        r"^total: ([\d,]+) enqueued = ([\d,]+) done \+ (\d+) dead \+ (\d+) cancelled \+ (\d+) left$",
        finished.stdout,
        re.MULTILINE,
    )
    assert sums is not None, finished.stdout
    enqueued, *ends = (int(number.replace(",", "")) for number in sums.groups())
    assert enqueued == 300 == sum(ends)
    assert all(ends), "some end in every way"
    brought_back = re.search(r"killed worker's (\d+) jobs, (\d+) ran to their end", finished.stdout)
    assert brought_back is not None
    assert int(brought_back[1]) == int(brought_back[2]) > 0
    assert "\x1b" not in finished.stdout
    assert finished.stderr == ""
    assert list(tmp_path.iterdir()) == []


# Children and files, when it is cut short.


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_demo_ends_its_workers_and_removes_its_files(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running_demo(tmp_path) as (process, pids):
        process.send_signal(number)
        said, _ = process.communicate(timeout=BOUND)
        assert process.returncode == 1, said
        assert all(map(is_gone, pids))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_workers_do_not_outlive_a_demo_that_was_killed(tmp_path: Path) -> None:
    with running_demo(tmp_path) as (process, pids):
        process.kill()
        process.wait(timeout=BOUND)
        eventually(lambda: all(map(is_gone, pids)))


@contextmanager
def running_demo(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A demo whose workers are up, and their pids."""
    process = subprocess.Popen(
        demo_command(), env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        process_group=0,
    )  # fmt: skip
    pids: list[int] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("started "):
                pids = [int(pid) for pid in re.findall(r"\(pid (\d+)\)", line)]
                break
        assert pids
        yield process, pids
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        for pid in pids:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    """Whether the process has ended, collected by its parent or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] in "ZX"


def eventually(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM.elapsed() + BOUND
    while not condition():
        assert SYSTEM.elapsed() < deadline, "it did not come true"
        block(0.02)


# The reckoning.


@pytest.fixture
def accepted() -> list[Accepted]:
    """All jobs of a demo, each where it should be at the end."""
    return [kept(planned, planned.end) for planned in [*exports(APP, 3), *plan(APP, 200)]]


def kept(planned: Planned, state: JobState, *, errors: tuple[Failure, ...] = ()) -> Accepted:
    key = new_key()
    job = Job(key, planned.job.queue, "", b"", {}, None, 0, state, 1, 3, 1, 0, 0, errors=errors)
    return Accepted(id_text(key), planned, job)


def counted(accepted: list[Accepted]) -> dict[str, QueueStats]:
    stats = {queue: QueueStats() for queue in QUEUES}
    for item in accepted:
        if item.record is not None:
            queue, state = stats[item.planned.job.queue], item.record.state.value
            setattr(queue, state, getattr(queue, state) + 1)
    return stats


def judged(accepted: list[Accepted], stats: dict[str, QueueStats] | None = None) -> Reckoning:
    return reckon(accepted, counted(accepted) if stats is None else stats, "worker-1", [email(accepted).id])


def email(accepted: list[Accepted]) -> Accepted:
    return next(item for item in accepted if item.planned.job.queue == EMAIL)


def test_a_demo_where_all_is_as_planned_exits_with_0(accepted: list[Accepted]) -> None:
    reckoning = judged(accepted)
    assert reckoning.problems == []
    assert reckoning.exit_code == 0
    assert reckoning.total.enqueued == 203 == reckoning.total.found


def test_a_missing_job_is_named_and_exits_with_1(accepted: list[Accepted]) -> None:
    lost = accepted[-1]
    accepted[-1] = Accepted(lost.id, lost.planned, None)
    reckoning = judged(accepted)
    assert reckoning.exit_code == 1
    assert not reckoning.total.adds_up
    enqueued = sum(item.planned.job.queue == EMAIL for item in accepted)
    assert (
        f"email: {enqueued} jobs were enqueued and {enqueued - 1} are counted: 1 missing."
        in reckoning.problems
    )
    assert any(lost.id in problem for problem in reckoning.problems)


def test_a_job_counted_twice_exits_with_1(accepted: list[Accepted]) -> None:
    stats = counted(accepted)
    stats[POISON].dead += 1
    reckoning = judged(accepted, stats)
    assert reckoning.exit_code == 1
    assert any("poison" in problem and "1 too many" in problem for problem in reckoning.problems)


def test_a_sum_that_adds_up_with_the_wrong_ends_exits_with_1(accepted: list[Accepted]) -> None:
    index = next(index for index, item in enumerate(accepted) if item.planned.job.queue == REMINDER)
    accepted[index] = kept(accepted[index].planned, JobState.DEAD)
    reckoning = judged(accepted)
    assert reckoning.total.adds_up
    assert reckoning.exit_code == 1
    assert "reminder: 0 jobs should be dead by now, and 1 are." in reckoning.problems


def test_counters_that_differ_from_the_records_exit_with_1(accepted: list[Accepted]) -> None:
    stats = counted(accepted)
    stats[EMAIL].done -= 1
    stats[EMAIL].dead += 1
    reckoning = judged(accepted, stats)
    assert reckoning.total.adds_up
    assert reckoning.exit_code == 1
    assert "email: the counter says 1 dead, the records say 0." in reckoning.problems


def test_a_job_of_the_killed_worker_that_did_not_end_exits_with_1(accepted: list[Accepted]) -> None:
    orphan = email(accepted)
    accepted[accepted.index(orphan)] = Accepted(
        orphan.id, orphan.planned, kept(orphan.planned, JobState.PENDING).record
    )
    reckoning = judged(accepted)
    assert reckoning.exit_code == 1
    assert f"1 of the 1 jobs of the killed worker-1 did not end: {orphan.id}." in reckoning.problems


def test_a_kill_that_hit_nobody_at_work_exits_with_1(accepted: list[Accepted]) -> None:
    reckoning = reckon(accepted, counted(accepted), None, [])
    assert reckoning.exit_code == 1
    assert len(reckoning.problems) == 1


@pytest.mark.parametrize(
    ("state", "errors", "held"),
    [
        (JobState.DONE, (Failure(1, 0, "worker-1-8a4f", "lease expired"),), True),
        (JobState.DONE, (Failure(1, 0, "worker-1-8a4f", "worker gone"),), True),
        (JobState.DONE, (Failure(1, 0, "worker-2-8a4f", "lease expired"),), False),
        (JobState.DONE, (Failure(1, 0, "worker-1-8a4f", "ConnectionError"),), False),
        (JobState.RUNNING, (), True),
        (JobState.DONE, (), False),
    ],
)
def test_a_dead_worker_held_what_runs_under_its_name_or_was_taken_back(
    state: JobState, errors: tuple[Failure, ...], held: bool
) -> None:
    job = kept(plan(APP, 100)[0], state, errors=errors).record
    assert job is not None
    job.worker = "worker-1-8a4f"
    assert was_held_by("worker-1", job) is held


# The command.


def test_the_command_exits_with_1_and_says_what_is_missing(
    accepted: list[Accepted], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(*_: object) -> Reckoning:
        return judged([*accepted[:-1], Accepted(accepted[-1].id, accepted[-1].planned, None)])

    monkeypatch.setattr(module, "play", play)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "1 missing" in result.output


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://", "for one process"),
        ("nosuch://", "no known engine"),
        ("sqlite:////nosuch/jobs.db", "folder"),
    ],
)
def test_a_url_that_the_demo_cannot_use_exits_with_2(url: str, reason: str) -> None:
    result = CliRunner().invoke(main, ["demo", "--url", url])
    assert result.exit_code == 2
    assert reason in result.output


def test_a_store_that_has_one_of_the_queues_already_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def use(then: Callable[[Broker], Awaitable[object]]) -> object:
        async with Broker(url) as broker:
            return await then(broker)

    asyncio.run(use(lambda broker: broker.enqueue(EMAIL)))
    result = CliRunner().invoke(main, ["demo", "--url", url])
    assert result.exit_code == 2
    assert "'email'" in result.output
    assert asyncio.run(use(lambda broker: broker.all_stats())) == {EMAIL: QueueStats(pending=1)}


def test_every_option_is_explained() -> None:
    result = CliRunner().invoke(main, ["demo", "--help"])
    assert result.exit_code == 0
    for option in module.demo.params:
        assert option.name in result.output
        assert getattr(option, "help", None)
