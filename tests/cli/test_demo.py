"""The demo accounts for every job, reports problems, and leaves no processes or files behind."""

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
from dayjob.cli import main
from dayjob.cli.demo import command
from dayjob.cli.demo.audit import Accepted, Audit, audit, was_held_by
from dayjob.cli.demo.plan import PlannedJob, exports, plan
from dayjob.cli.demo.tasks import EMAIL, POISON, QUEUES, REMINDER, make_app
from dayjob.model.job import Failure, id_text
from dayjob.runtime.clock import SYSTEM, block
from dayjob.runtime.ids import new_key
from tests.support.bound import BOUND

APP = make_app("memory://")


def demo_command(*arguments: str) -> list[str]:
    """Return a command that handles Ctrl-C even if the shell ignores it, as for background jobs."""
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from dayjob.cli import main; main(prog_name='dayjob')"
    )
    return [sys.executable, "-c", start, "demo", *arguments]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}


# The whole demo.


@pytest.mark.slow
def test_the_demo_accounts_for_every_job_and_removes_its_files(tmp_path: Path) -> None:
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
    assert all(ends), "every final state occurs"
    recovered = re.search(r"killed worker's (\d+) jobs, (\d+) finished", finished.stdout)
    assert recovered is not None
    assert int(recovered[1]) == int(recovered[2]) > 0
    assert "\x1b" not in finished.stdout
    assert finished.stderr == ""
    assert list(tmp_path.iterdir()) == []


# Processes and files after an interrupt.


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_demo_ends_its_workers_and_removes_its_files(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running_demo(tmp_path) as (process, pids):
        process.send_signal(number)
        output, _ = process.communicate(timeout=BOUND)
        assert process.returncode == 1, output
        assert all(map(is_gone, pids))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_workers_end_after_their_demo_was_killed(tmp_path: Path) -> None:
    with running_demo(tmp_path) as (process, pids):
        process.kill()
        process.wait(timeout=BOUND)
        eventually(lambda: all(map(is_gone, pids)))


@contextmanager
def running_demo(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A demo whose workers have started, and their pids."""
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
    """Return whether the process has ended. A zombie counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] in "ZX"


def eventually(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM.elapsed() + BOUND
    while not condition():
        assert SYSTEM.elapsed() < deadline, "the condition did not become true"
        block(0.02)


# The audit.


@pytest.fixture
def accepted() -> list[Accepted]:
    """All jobs of a demo, each in its expected state."""
    return [stored(planned, planned.expected) for planned in [*exports(APP, 3), *plan(APP, 200)]]


def stored(planned: PlannedJob, state: JobState, *, errors: tuple[Failure, ...] = ()) -> Accepted:
    key = new_key()
    job = Job(
        key=key, queue=planned.job.queue, task="", payload=b"", headers={}, tenant=None, priority=0,
        state=state, attempts=1, max_attempts=3, epoch=1, enqueued_us=0, run_us=0, errors=errors,
    )  # fmt: skip
    return Accepted(id_text(key), planned, job)


def counted(accepted: list[Accepted]) -> dict[str, QueueStats]:
    stats = {queue: QueueStats() for queue in QUEUES}
    for item in accepted:
        if item.record is not None:
            queue, state = stats[item.planned.job.queue], item.record.state.value
            setattr(queue, state, getattr(queue, state) + 1)
    return stats


def audited(accepted: list[Accepted], stats: dict[str, QueueStats] | None = None) -> Audit:
    return audit(accepted, counted(accepted) if stats is None else stats, "worker-1", [email(accepted).id])


def email(accepted: list[Accepted]) -> Accepted:
    return next(item for item in accepted if item.planned.job.queue == EMAIL)


def test_jobs_that_all_ended_as_planned_give_exit_code_0(accepted: list[Accepted]) -> None:
    found = audited(accepted)
    assert found.problems == []
    assert found.exit_code == 0
    assert found.total.enqueued == 203 == found.total.counted


def test_a_missing_job_is_reported_by_id_with_exit_code_1(accepted: list[Accepted]) -> None:
    lost = accepted[-1]
    accepted[-1] = Accepted(lost.id, lost.planned, None)
    found = audited(accepted)
    assert found.exit_code == 1
    assert not found.total.adds_up
    enqueued = sum(item.planned.job.queue == EMAIL for item in accepted)
    assert f"email: {enqueued} jobs enqueued, {enqueued - 1} counted: 1 missing." in found.problems
    assert any(lost.id in problem for problem in found.problems)


def test_a_job_counted_twice_gives_exit_code_1(accepted: list[Accepted]) -> None:
    stats = counted(accepted)
    stats[POISON].dead += 1
    found = audited(accepted, stats)
    assert found.exit_code == 1
    assert any("poison" in problem and "1 too many" in problem for problem in found.problems)


def test_right_totals_with_wrong_final_states_give_exit_code_1(accepted: list[Accepted]) -> None:
    index = next(index for index, item in enumerate(accepted) if item.planned.job.queue == REMINDER)
    accepted[index] = stored(accepted[index].planned, JobState.DEAD)
    found = audited(accepted)
    assert found.total.adds_up
    assert found.exit_code == 1
    assert "reminder: 0 jobs should be dead, but 1 are." in found.problems


def test_counters_that_differ_from_the_records_give_exit_code_1(accepted: list[Accepted]) -> None:
    stats = counted(accepted)
    stats[EMAIL].done -= 1
    stats[EMAIL].dead += 1
    found = audited(accepted, stats)
    assert found.total.adds_up
    assert found.exit_code == 1
    assert "email: the counter has 1 dead, the records have 0." in found.problems


def test_an_unfinished_job_of_the_killed_worker_gives_exit_code_1(accepted: list[Accepted]) -> None:
    orphan = email(accepted)
    accepted[accepted.index(orphan)] = Accepted(
        orphan.id, orphan.planned, stored(orphan.planned, JobState.PENDING).record
    )
    found = audited(accepted)
    assert found.exit_code == 1
    assert f"1 of the 1 jobs of worker-1 did not finish: {orphan.id}." in found.problems


def test_a_kill_of_an_idle_worker_gives_exit_code_1(accepted: list[Accepted]) -> None:
    found = audit(accepted, counted(accepted), None, [])
    assert found.exit_code == 1
    assert len(found.problems) == 1


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
def test_a_dead_worker_held_the_jobs_that_run_under_its_name_or_were_reaped_from_it(
    state: JobState, errors: tuple[Failure, ...], held: bool
) -> None:
    job = stored(plan(APP, 100)[0], state, errors=errors).record
    assert job is not None
    job.worker = "worker-1-8a4f"
    assert was_held_by("worker-1", job) is held


# The command.


def test_the_command_reports_a_missing_job_and_exits_with_1(
    accepted: list[Accepted], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_scenario(*_: object) -> Audit:
        return audited([*accepted[:-1], Accepted(accepted[-1].id, accepted[-1].planned, None)])

    monkeypatch.setattr(command, "run_scenario", run_scenario)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "1 missing" in result.output


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://", "allows one process only"),
        ("nosuch://", "no known engine"),
        ("sqlite:////nosuch/jobs.db", "folder"),
    ],
)
def test_a_url_that_the_demo_cannot_use_exits_with_2(url: str, reason: str) -> None:
    result = CliRunner().invoke(main, ["demo", "--url", url])
    assert result.exit_code == 2
    assert reason in result.output


def test_a_store_that_already_has_one_of_the_queues_is_refused_and_not_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def use(work: Callable[[Broker], Awaitable[object]]) -> object:
        async with Broker(url) as broker:
            return await work(broker)

    asyncio.run(use(lambda broker: broker.enqueue(EMAIL)))
    result = CliRunner().invoke(main, ["demo", "--url", url])
    assert result.exit_code == 2
    assert "'email'" in result.output
    assert asyncio.run(use(lambda broker: broker.all_stats())) == {EMAIL: QueueStats(pending=1)}


def test_every_option_has_a_help_text() -> None:
    result = CliRunner().invoke(main, ["demo", "--help"])
    assert result.exit_code == 0
    for option in command.demo.params:
        assert option.name in result.output
        assert getattr(option, "help", None)
