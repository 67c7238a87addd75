"""``dayjob worker``: its queues, logs and exit codes, and its supervisor."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dayjob import App, Job, JobState, NewJob
from dayjob.cli import logging_setup, main
from dayjob.cli.logging_setup import CONTINUED
from dayjob.cli.worker import command, process, supervisor
from dayjob.cli.worker.options import Address, WorkerOptions
from dayjob.cli.worker.restart_watcher import SourceFiles
from dayjob.runtime.process import rss
from dayjob.worker.job_log import SHORT_ID
from tests.cli.processes import Command, Start, eventually, is_gone, starting, with_broker
from tests.support.bound import BOUND

JOBS = """
    import asyncio, os
    from dayjob.app import App
    from dayjob.context import Context

    app = App(os.environ.get("URL", "sqlite:///jobs.db"))

    @app.task(name="greet", queue="greetings")
    async def greet(ctx: Context, name: str) -> str:
        ctx.log.info("hello %s", name)
        return f"hello {name}"

    @app.task(name="fail", queue="failures")
    async def fail() -> None:
        raise ValueError("no luck")

    @app.task(name="crash", queue="crashes")
    async def crash() -> None:
        os._exit(7)

    @app.task(name="grow", queue="growth")
    async def grow(mebibytes: int) -> None:
        app.ballast = bytearray(os.urandom(1) * mebibytes * 2**20)

    @app.task(name="wait", queue="waits")
    async def wait(ctx: Context) -> None:
        ctx.log.info("waiting")
        await asyncio.Event().wait()

    @app.handler(queue="raw")
    async def raw(job) -> None:
        pass

    other = app
    number = 7
"""


ADA = b'{"name": "Ada"}'


class Project:
    """A folder with ``jobs.py``, and workers in it."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self._start = start
        self.write("jobs.py", JOBS)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
        return path

    def worker(self, *arguments: str) -> Command:
        return self._start(*arguments)

    def enqueue(
        self,
        task: str,
        queue: str,
        payload: bytes = b"{}",
        count: int = 1,
        max_attempts: int = 3,
        tenant: str | None = None,
    ) -> list[str]:
        jobs = [NewJob(queue, payload, task=task, max_attempts=max_attempts, tenant=tenant)] * count
        return [enqueued.id for enqueued in with_broker(self.url, lambda broker: broker.enqueue_many(jobs))]

    def job(self, id: str) -> Job:
        job = with_broker(self.url, lambda broker: broker.get(id))
        assert job is not None
        return job

    def done(self, queue: str) -> int:
        return with_broker(self.url, lambda broker: broker.stats(queue)).done

    def until_done(self, queue: str, count: int, worker: Command) -> None:
        eventually(lambda: self.done(queue) >= count, f"{count} done on {queue}", worker.output)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path / "project"
    folder.mkdir()
    with starting(folder, tmp_path, {"PYTHONDONTWRITEBYTECODE": "1"}) as start:
        yield Project(folder, start)


def child_pids(worker: Command) -> list[int]:
    return [int(pid) for pid in re.findall(r"worker process \d+ has pid (\d+)", worker.output())]


# One process.


HEAPS = """
    import ctypes, os, threading
    from dayjob import App

    app = App("sqlite:///jobs.db")

    @app.task(name="count", queue="counts")
    def count() -> None:
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        together = threading.Barrier(40)

        def allocate() -> None:
            together.wait()
            libc.malloc(1000)
            together.wait()

        threads = [threading.Thread(target=allocate) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        file = ctypes.c_void_p(libc.fopen(b"heaps.xml", b"w"))
        libc.malloc_info(0, file)
        libc.fclose(file)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the allocator is not glibc's")
@pytest.mark.parametrize("own", [None, 3], ids=["default", "MALLOC_ARENA_MAX"])
def test_the_allocator_of_a_worker_has_a_heap_for_each_processor(
    project: Project, monkeypatch: pytest.MonkeyPatch, own: int | None
) -> None:
    """SlateDB has many threads. With a heap for each of them, the worker was larger by a fifth."""
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    if own is not None:
        monkeypatch.setenv("MALLOC_ARENA_MAX", str(own))
    project.write("heaps.py", HEAPS)
    project.enqueue("count", "counts")
    assert project.worker("heaps:app", "--burst").wait() == 0
    heaps = (project.folder / "heaps.xml").read_text().count("<heap ")
    assert 1 <= heaps <= (own or os.cpu_count() or 1)


def test_a_burst_serves_the_queues_of_all_tasks_and_handlers_and_ends(project: Project) -> None:
    greeting, raw = project.enqueue("greet", "greetings", ADA) + project.enqueue("", "raw", b"\xff")
    failing = project.enqueue("fail", "failures", max_attempts=1)[0]
    elsewhere = project.enqueue("greet", "elsewhere", ADA)[0]
    worker = project.worker("jobs:app", "--burst")
    assert worker.wait() == 0, worker.output()
    states = [project.job(id).state for id in (greeting, raw, failing, elsewhere)]
    assert states == [JobState.DONE, JobState.DONE, JobState.DEAD, JobState.PENDING]
    output = worker.output()
    assert re.search(
        rf"^[-\d]+ [:.\d]+ INFO    hello Ada \(greet, job {greeting}, attempt 1\)$", output, re.M
    )
    assert re.search(
        rf"^[-\d]+ [:.\d]+ ERROR   Job {failing} is dead: ValueError: no luck \(fail, attempt 1, \d+ ms\)",
        output,
        re.M,
    )
    assert f"\n{CONTINUED}Traceback" in output
    assert "\x1b" not in output


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
@pytest.mark.parametrize("more", [(), ("--processes", "1"), ("--log-format", "json")])
def test_a_worker_with_closed_standard_streams_runs_its_jobs(
    project: Project, closed: tuple[int, ...], more: tuple[str, ...]
) -> None:
    done = [*project.enqueue("greet", "greetings", ADA), *project.enqueue("pid", "processes", b"{}")]
    project.write(
        "jobs.py",
        f"{dedent(JOBS)}\n@app.task(name='pid', queue='processes', pool='process')\n"
        "def pid() -> int:\n    print('in the child')\n    return os.getpid()\n",
    )
    closing = "; ".join(f"os.close({descriptor})" for descriptor in closed)
    command = ("-m", "dayjob", "worker", "jobs:app", "--burst", *more)
    start = f"import os, sys; {closing}; os.execv(sys.executable, [sys.executable, *{command!r}])"
    ended = subprocess.run([sys.executable, "-c", start], cwd=project.folder, timeout=BOUND)
    assert ended.returncode == 0
    assert [project.job(id).state for id in done] == [JobState.DONE] * 2


def test_only_the_given_queues_are_served_and_a_star_means_all(project: Project) -> None:
    project.enqueue("greet", "one", ADA)
    project.enqueue("greet", "two", ADA)
    project.enqueue("greet", "three", ADA)
    some = project.worker("./jobs.py", "-q", "one,two", "--burst", "--no-uvloop")
    assert some.wait() == 0, some.output()
    assert [project.done(queue) for queue in ("one", "two", "three")] == [1, 1, 0]
    rest = project.worker("jobs", "-q", "*", "--burst")
    assert rest.wait() == 0, rest.output()
    assert project.done("three") == 1


def test_json_logs_have_one_object_a_line_with_the_fields_of_the_job(project: Project) -> None:
    greeting = project.enqueue("greet", "greetings", ADA, tenant="acme")[0]
    failing = project.enqueue("fail", "failures", max_attempts=1)[0]
    worker = project.worker("jobs:app", "--burst", "--log-format", "json", "--log-level", "debug")
    assert worker.wait() == 0, worker.output()
    lines = [json.loads(line) for line in worker.output().splitlines()]
    hello = next(line for line in lines if line["message"] == "hello Ada")
    started = next(line["message"].split()[1] for line in lines if " started: " in line["message"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", hello.pop("time"))
    assert hello.pop("worker") == started
    assert hello == {
        "level": "info", "logger": "dayjob.job", "pid": worker.pid, "message": "hello Ada",
        "job_id": greeting, "queue": "greetings", "task": "greet", "attempt": 1, "tenant": "acme",
    }  # fmt: skip
    dead = next(line for line in lines if line.get("job_id") == failing and line["level"] == "error")
    assert dead["exception"].startswith("Traceback")
    done = next(line for line in lines if line["message"] == f"Job {greeting[:SHORT_ID]} succeeded")
    assert (done["level"], done["job_id"], done["tenant"]) == ("debug", greeting, "acme")
    assert 0 <= done["seconds"] < BOUND


def test_each_job_is_a_line_on_a_terminal_or_on_request(project: Project) -> None:
    line = re.compile(r"INFO    Job ([-0-9a-f]{18}) succeeded \(greet, attempt 1, \d+ ms\)")

    def logged(*options: str, terminal: bool = False) -> list[str]:
        ids = project.enqueue("greet", "greetings", ADA)
        command = (sys.executable, "-P", "-m", "dayjob", "worker", "jobs:app", "--burst", *options)
        reader, writer = pty.openpty() if terminal else os.pipe()
        with subprocess.Popen(
            command, cwd=project.folder, stdin=subprocess.DEVNULL, stderr=writer
        ) as process:
            os.close(writer)
            output = b""
            with suppress(OSError):  # A terminal raises at its end.
                while more := os.read(reader, 65536):
                    output += more
            assert process.wait(BOUND) == 0, output
        os.close(reader)
        found = line.findall(output.decode())
        assert found in ([], [ids[0][:18]]), output
        return found

    assert logged(terminal=True)
    assert logged("--log-jobs", "--processes", "2")
    assert not logged()
    assert not logged("--no-log-jobs", terminal=True)


def test_metrics_are_served_on_the_given_address(project: Project) -> None:
    port = free_port()
    worker = project.worker("jobs:app", "--metrics", f"0.0.0.0:{port}")
    worker.wait_for_output("started: queues")
    with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=BOUND) as reply:
        assert reply.status == 200
    assert worker.stop() == 0


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("9100", Address("127.0.0.1", 9100)),
        ("0.0.0.0:9100", Address("0.0.0.0", 9100)),
        ("metrics.local:9100", Address("metrics.local", 9100)),
        ("[::1]:9100", Address("::1", 9100)),
    ],
)
def test_the_address_for_metrics_is_a_port_or_a_host_with_a_port(
    monkeypatch: pytest.MonkeyPatch, given: str, address: Address
) -> None:
    options: list[WorkerOptions] = []

    def run(given: WorkerOptions) -> int:
        options.append(given)
        return 0

    monkeypatch.setattr(command, "run_worker", run)
    monkeypatch.setattr(command, "configure", lambda *_: None)
    assert CliRunner().invoke(main, ["worker", "jobs:app", "--metrics", given]).exit_code == 0
    assert options[0].metrics == address


@pytest.mark.parametrize("address", ["", ":", "0", "65536", "host", "host:", ":9100", "host:port"])
def test_an_invalid_address_for_metrics_is_refused(project: Project, address: str) -> None:
    result = CliRunner().invoke(main, ["worker", "jobs:app", "--metrics", address])
    assert result.exit_code == 2
    assert "write PORT or HOST:PORT" in result.output


def test_child_processes_serve_their_metrics_on_the_next_ports() -> None:
    assert [str(Address("::1", 9100).next(number)) for number in (0, 2)] == ["[::1]:9100", "[::1]:9102"]
    assert str(Address("0.0.0.0", 9100)) == "0.0.0.0:9100"


# Arguments.


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("nosuch:app", "there is no module 'nosuch'"),
        ("nosuch.deeper:app", "there is no module 'nosuch'"),
        ("jobs:ap", "module 'jobs' has no attribute 'ap'. Its apps: jobs:app, jobs:other"),
        ("jobs:number", "jobs:number is a int, not an App. Its apps: jobs:app, jobs:other"),
        ("empty:app", "The module has no App."),
        ("idle:app", "has no tasks"),
        ("./nosuch.py:app", "there is no file"),
        ("./json.py:app", "rename the file"),
        (":app", "names no app"),
        ("jobs:", "names no app"),
    ],
)
def test_an_argument_that_is_not_an_app_exits_with_2_and_the_reason(
    project: Project, monkeypatch: pytest.MonkeyPatch, argument: str, reason: str
) -> None:
    project.write("empty.py", "")
    project.write("json.py", "")
    project.write("idle.py", "from dayjob.app import App\napp = App('memory://')\n")
    result = invoke(project, monkeypatch, argument)
    assert result.exit_code == 2, result.output
    assert reason in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize("source", ["import nosuchlibrary", "1 / 0", "def broken(:", "raise SystemExit(5)"])
def test_a_module_that_fails_to_import_exits_with_1_and_shows_its_own_traceback(
    project: Project, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    project.write("broken.py", source)
    result = invoke(project, monkeypatch, "broken:app")
    assert result.exit_code == 1
    assert "broken.py" in result.output
    assert "broken could not be imported" in result.output
    assert "app_argument" not in result.output
    assert "importlib" not in result.output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-q", "one,,two"], "empty"),
        (["-q", "*,one"], "all queues"),
        (["-c", "0"], "0 is not in the range"),
        (["--name", "n" * 2000], "worker name"),
        (["--burst", "--reload"], "use one of them"),
    ],
)
def test_bad_options_exit_with_2(
    project: Project, monkeypatch: pytest.MonkeyPatch, options: list[str], reason: str
) -> None:
    result = invoke(project, monkeypatch, "jobs:app", *options)
    assert result.exit_code == 2, result.output
    assert reason in result.output


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--processes", "2"], "one process at a time"), (["--max-jobs", "9"], "a restart would lose them")],
)
def test_options_that_the_engine_does_not_support_exit_with_2(
    project: Project, monkeypatch: pytest.MonkeyPatch, options: list[str], reason: str
) -> None:
    monkeypatch.setenv("URL", "memory://")
    result = invoke(project, monkeypatch, "jobs:app", *options)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())


def invoke(project: Project, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """Run a command that ends before a worker starts, in this process, and restore the process."""

    def run(*_: object) -> int:
        raise AssertionError("a worker would have started")

    known = set(sys.modules)
    monkeypatch.setattr(process, "_run", run)
    monkeypatch.setattr(command, "configure", lambda *_: None)
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        return CliRunner().invoke(main, ["worker", *arguments])
    finally:
        for name in set(sys.modules) - known:
            del sys.modules[name]


def test_the_limits_of_threads_and_child_processes_reach_the_worker_and_its_children(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[WorkerOptions] = []

    def run_worker(options: WorkerOptions) -> int:
        given.append(options)
        return 0

    monkeypatch.setattr(command, "run_worker", run_worker)
    assert invoke(project, monkeypatch, "jobs:app", "--threads", "3", "--pool-processes", "2").exit_code == 0
    [options] = given
    worker = process.make_worker(App("memory://"), replace(options, queues=("q",)))
    assert (worker.threads, worker.pool_processes) == (3, 2)
    child = " ".join(options.for_child(1, 5))
    assert "--threads 3 --pool-processes 2" in child


def test_every_option_has_a_help_text() -> None:
    result = CliRunner().invoke(main, ["worker", "--help"])
    assert result.exit_code == 0
    for option in command.worker.params:
        if option.name not in ("app", "child"):
            assert max(option.opts, key=len) in result.output
            assert getattr(option, "help", None)


# Exit codes of the storage.


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])
def test_an_unavailable_storage_exits_with_3(project: Project, supervised: bool) -> None:
    project.write("locked.py", JOBS.replace("jobs.db", "locked.db?timeout=0.1"))
    holder = sqlite3.connect(project.folder / "locked.db", isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        worker = project.worker("locked:app", *(["--processes", "2"] if supervised else []))
        assert worker.wait() == 3, worker.output()
        assert "locked for 0.1 s" in worker.output()
    finally:
        holder.close()


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])
def test_a_storage_that_cannot_be_used_exits_with_2(project: Project, supervised: bool) -> None:
    project.write("misplaced.py", JOBS.replace("jobs.db", "nosuch/jobs.db"))
    worker = project.worker("misplaced:app", *(["--processes", "2"] if supervised else []))
    assert worker.wait() == 2, worker.output()
    assert "does not exist: create it first" in worker.output()


# The supervisor.


@pytest.mark.slow
def test_a_crashed_worker_is_restarted_and_the_job_that_crashed_it_ends_dead(project: Project) -> None:
    poison = project.enqueue("crash", "crashes", max_attempts=2)[0]
    worker = project.worker("jobs:app", "--processes", "2")
    eventually(lambda: project.job(poison).state is JobState.DEAD, "dead poison job", worker.output)
    worker.wait_for_output("ended with exit code 7; restarting it in", times=2)
    project.enqueue("greet", "greetings", ADA, count=20)
    project.until_done("greetings", 20, worker)
    assert worker.stop() == 0, worker.output()
    assert all(map(is_gone, child_pids(worker)))


@pytest.mark.slow
def test_a_worker_is_replaced_after_max_jobs_without_delay(project: Project) -> None:
    project.enqueue("greet", "greetings", ADA, count=25)
    worker = project.worker("jobs:app", "--max-jobs", "10", "--burst")
    assert worker.wait() == 0, worker.output()
    assert project.done("greetings") == 25
    assert len(child_pids(worker)) >= 3
    assert "stopped after 10 runs" in worker.output()
    assert "restarting it in" not in worker.output()


@pytest.mark.slow
def test_a_worker_over_its_memory_limit_is_replaced(project: Project) -> None:
    limit = rss() // 2**20 + 200
    worker = project.worker("jobs:app", "--max-rss", str(limit))
    worker.wait_for_output("slots")
    project.enqueue("grow", "growth", json.dumps({"mebibytes": limit}).encode())
    worker.wait_for_output("over --max-rss")
    worker.wait_for_output("slots", times=2)
    assert project.done("growth") == 1
    assert worker.stop() == 0, worker.output()


@pytest.mark.slow
def test_a_code_change_restarts_the_worker_even_after_a_syntax_error(project: Project) -> None:
    waiting = project.enqueue("wait", "waits")[0]
    worker = project.worker("jobs:app", "--reload")
    worker.wait_for_output(f"waiting (wait, job {waiting}, attempt 1)")
    project.write("jobs.py", "def mistake(:")
    worker.wait_for_output("SyntaxError")
    worker.wait_for_output("waiting for a change")
    assert project.job(waiting).attempts == 0, (
        "a reload does not count as an attempt of the jobs that it interrupts"
    )
    project.write("jobs.py", JOBS.replace("await asyncio.Event().wait()", "ctx.log.info('corrected')"))
    worker.wait_for_output(f"corrected (wait, job {waiting}, attempt 1)")
    assert worker.stop() == 0, worker.output()


def test_a_file_that_is_corrected_while_its_error_is_shown_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files were first looked at after the import had failed: a change until then went unnoticed."""
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "broken.py"
    source.write_text("def mistake(:")
    os.utime(source, ns=(1, 1))

    def correct(name: str) -> App:
        source.write_text("corrected = True")
        raise click.ClickException("the import failed")

    monkeypatch.setattr(process, "load_app", correct)
    monkeypatch.setattr(process, "SupervisorLink", lambda *_: None)
    options: Any = SimpleNamespace(app="broken:app", reload=True, shutdown_timeout=1.0)
    codes: list[int] = []
    child = threading.Thread(target=lambda: codes.append(process.run_child(options, 0)), daemon=True)
    child.start()
    child.join(BOUND)
    assert codes == [process.REPLACE]


@pytest.mark.slow
def test_workers_drain_and_end_after_their_supervisor_was_killed(project: Project) -> None:
    waiting = project.enqueue("wait", "waits")[0]
    worker = project.worker("jobs:app", "--processes", "2", "--shutdown-timeout", "0.5")
    worker.wait_for_output("slots", times=2)
    worker.wait_for_output("waiting")
    pids = child_pids(worker)
    worker.kill()
    eventually(lambda: all(map(is_gone, pids)), "end of the children", worker.output)
    job = project.job(waiting)
    assert (job.state, job.attempts) == (JobState.PENDING, 0), "they drained"


@pytest.mark.slow
def test_a_signal_that_reaches_supervisor_and_children_drains_and_a_second_one_stops_at_once(
    project: Project,
) -> None:
    waiting = project.enqueue("wait", "waits")[0]
    worker = project.worker("jobs:app", "--processes", "2", "--shutdown-timeout", "600")
    worker.wait_for_output("slots", times=2)
    worker.wait_for_output("waiting")
    for pid in (worker.pid, *child_pids(worker)):  # As systemd does by default.
        os.kill(pid, signal.SIGTERM)
    worker.wait_for_output("stopped after 0 runs")
    assert "at once" not in worker.output()
    assert project.job(waiting).state is JobState.RUNNING
    assert worker.stop() == 0, worker.output()
    assert "at once" in worker.output()
    assert project.job(waiting).state is JobState.PENDING


@pytest.mark.slow
def test_a_worker_that_never_gets_ready_stops_the_supervisor_with_1_and_the_reason(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.01)
    project.write(
        "hopeless.py",
        JOBS.replace(
            "import asyncio, os", "import asyncio, os\n    from contextlib import asynccontextmanager"
        ).replace('"sqlite:///jobs.db")', '"sqlite:///jobs.db"), lifespan=lambda app: lifespan(app)')
        + """
    @asynccontextmanager
    async def lifespan(app):
        raise RuntimeError("no database today")
        yield
    """,
    )
    with caplog.at_level(logging.ERROR):
        result = invoke(project, monkeypatch, "hopeless:app", "--max-jobs", "100")
    assert result.exit_code == 1
    assert "failed 5 times in a row before it was ready: it ended with exit code 1" in caplog.text
    assert capfd.readouterr().err.count("RuntimeError: no database today") == 5


# Parts.


def test_json_logs_accept_extras_that_json_can_not_represent() -> None:
    cycle: dict[str, object] = {}
    cycle["again"] = cycle
    for value in (cycle, float("nan"), object(), {(1, 2): 3}, "\udc80", b"\xff"):
        record = logging.makeLogRecord({"msg": "odd", "odd": value})
        line = logging_setup.JsonFormatter().format(record)
        assert json.loads(line)["message"] == "odd"
        assert "\n" not in line


def test_changed_and_removed_files_below_a_folder_are_detected(tmp_path: Path) -> None:
    one = tmp_path / "one.py"
    one.write_text("")
    files = SourceFiles(tmp_path)
    assert files.changed() is None
    os.utime(one, ns=(1, 1))
    assert files.changed() == one
    files = SourceFiles(tmp_path)
    one.unlink()
    assert files.changed() == one
