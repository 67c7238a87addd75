"""Synchronous code: users share one event loop, also while the program ends, and the last one closes it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from dayjob import App, Closed, DayjobError, InvalidState, Task
from dayjob.runtime.bridge import Bridge
from tests.support.app_runs import ajobs, jobs
from tests.support.bound import BOUND


def keeping(app: App) -> Task[[int], None, None]:
    @app.task(name="keep")
    def keep(number: int) -> None: ...

    return keep


# Users.


def test_threads_that_each_open_and_close_an_app_do_not_disturb_each_other(url: str) -> None:
    app = App(url)
    keep = keeping(app)
    barrier = threading.Barrier(4)

    def work(_: int) -> None:
        barrier.wait(BOUND)
        for step in range(25):
            with app:
                keep.enqueue(step)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    with app:
        assert len(jobs(app)) == 100


def test_the_last_block_closes_the_app(url: str) -> None:
    app = App(url)
    with app:
        broker = app.broker
        with app:
            assert app.broker is broker
        assert broker.is_open
    assert not broker.is_open


def test_a_call_that_runs_while_the_block_ends_is_finished_and_closes_the_app(url: str) -> None:
    app = App(url)
    keep = keeping(app)
    begun, block_ended = threading.Event(), threading.Event()

    async def slow() -> int:
        begun.set()
        await asyncio.to_thread(block_ended.wait, BOUND)
        await keep.aenqueue(1)
        return len(await ajobs(app))

    with ThreadPoolExecutor(1) as pool:
        with app:
            broker = app.broker
            call = pool.submit(app.call, slow)
            assert begun.wait(BOUND)
        assert broker.is_open
        block_ended.set()
        assert call.result(BOUND) == 1
    assert not broker.is_open


def test_a_call_that_keeps_nothing_open_ends_with_the_loop() -> None:
    bridge = Bridge("test")
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(bridge.run, wait, keep_open=False)
        assert begun.wait(BOUND)
        bridge.stop()
        with pytest.raises(Closed, match="closed during the call: call again"):
            call.result(BOUND)


def test_a_block_that_fails_to_open_is_no_user(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/absent/jobs.db")
    with pytest.raises(DayjobError), app:
        pass
    (tmp_path / "absent").mkdir()
    with app:
        broker = app.broker
    assert not broker.is_open


def test_a_failed_close_does_not_replace_the_result_of_the_last_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bridge = Bridge("test")

    async def close() -> None:
        raise OSError("no")

    async def work() -> int:
        await asyncio.to_thread(bridge.leave, close)
        return 1

    bridge.enter()
    assert bridge.run(work) == 1
    assert "could not be closed" in caplog.text


def test_a_coroutine_that_exits_does_not_end_the_loop_of_the_others() -> None:
    bridge = Bridge("test")

    async def leave() -> None:
        raise SystemExit(3)

    async def answer() -> int:
        return 1

    with pytest.raises(SystemExit):
        bridge.run(leave)
    assert bridge.run(answer) == 1
    bridge.stop()


def test_a_signal_handler_can_enqueue_in_the_middle_of_a_call(memory_app: App) -> None:
    """The handler runs in a thread that may hold the lock of the bridge."""
    keep = keeping(memory_app)
    with memory_app._bridge._lock:
        keep.enqueue(1)
    assert len(jobs(memory_app)) == 1


# The end of the program.

HEAD = """
import asyncio, atexit, os, sys, threading
if "before import" in sys.argv:
    atexit.register(lambda: enqueue())
from dayjob import App, Worker

app = App("sqlite:///jobs.db")

@app.task(name="keep")
def keep(number: int) -> None: ...

def enqueue() -> None:
    try:
        print(keep.enqueue(1).created)
    except Exception as error:
        print(type(error).__name__, error)

if "opened" in sys.argv:
    keep.enqueue(0)

def after_main(work):
    def wait():
        threading.main_thread().join()
        try:
            work()
        except Exception as error:
            print(type(error).__name__, error)
    threading.Thread(target=wait).start()
"""


FORKS = "ignore:This process:DeprecationWarning"
"""Python 3.12 and later warn of a fork beside threads. It is the subject of a test."""


def script(folder: Path, text: str, *arguments: str) -> str:
    """Run a program to its end without errors. Return its output."""
    done = subprocess.run(
        [sys.executable, "-W", FORKS, "-c", HEAD + text, *arguments],
        cwd=folder, capture_output=True, text=True, timeout=BOUND,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.strip()


THREADS_START = sys.version_info[:2] != (3, 12)
"""Whether a thread can start after the end of the main thread. None can in some versions of Python 3.12."""


def stored(folder: Path) -> int:
    with App(f"sqlite:///{folder}/jobs.db") as app:
        return len(jobs(app))


@pytest.mark.parametrize("opened", ["opened", "first use"])
def test_a_thread_enqueues_after_the_end_of_the_main_thread(tmp_path: Path, opened: str) -> None:
    output = script(tmp_path, "after_main(enqueue)", opened)
    if THREADS_START or opened == "opened":
        assert output == "True"
    assert output == "True" or "nothing was stored" in output
    assert stored(tmp_path) == (output == "True") + (opened == "opened")


def test_a_thread_opens_and_closes_the_app_after_the_end_of_the_main_thread_or_gets_the_reason(
    tmp_path: Path,
) -> None:
    text = """
def work():
    with app:
        enqueue()
after_main(work)
"""
    output = script(tmp_path, text)
    assert output == "True" or (not THREADS_START and "nothing was stored" in output)
    assert stored(tmp_path) == (output == "True")


def test_a_worker_in_a_thread_ends_after_the_end_of_the_main_thread(tmp_path: Path) -> None:
    text = """
async def work():
    async with app:
        await keep.aenqueue(1)
        worker = Worker(app)
        await worker.run_until_idle()
        print(worker.done)
after_main(lambda: asyncio.run(work()))
"""
    output = script(tmp_path, text)
    assert output == "1" or (not THREADS_START and "can't create new thread" in output)


@pytest.mark.parametrize("registered", ["before import", "later"])
@pytest.mark.parametrize("opened", ["opened", "first use"])
def test_an_enqueue_at_exit_is_stored_or_refused(tmp_path: Path, registered: str, opened: str) -> None:
    """From Python 3.12, no thread starts at exit."""
    text = 'if "later" in sys.argv: atexit.register(enqueue)'
    output = script(tmp_path, text, registered, opened)
    if sys.version_info < (3, 12) or (registered, opened) == ("later", "opened"):
        assert output == "True"
    assert output == "True" or "nothing was stored" in output
    assert stored(tmp_path) == (output == "True") + (opened == "opened")


def test_an_enqueue_that_needs_a_thread_when_none_can_start_is_refused(tmp_path: Path) -> None:
    text = """
def refuse(*_, **__):
    raise RuntimeError("can't create new thread at interpreter shutdown")
def at_exit():
    threading.Thread.start = refuse
    enqueue()
atexit.register(at_exit)
"""
    output = script(tmp_path, text)
    assert output.startswith("InvalidState the interpreter is ending")
    assert "nothing was stored: enqueue before the program ends" in output
    assert stored(tmp_path) == 0


def test_a_forked_child_can_leave_the_block_of_its_parent(tmp_path: Path) -> None:
    text = """
with app:
    enqueue()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        enqueue()
if child == 0:
    enqueue()
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    assert script(tmp_path, text).split() == ["True"] * 3
    assert stored(tmp_path) == 3


# Green threads.


def test_synchronous_calls_under_gevent_are_refused_each_time(tmp_path: Path) -> None:
    text = "from gevent import monkey; monkey.patch_all(); enqueue(); enqueue()"
    lines = script(tmp_path, text).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("InvalidState gevent has replaced the threads") for line in lines)


@pytest.mark.parametrize(
    ("module", "question"),
    [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")],
)
def test_replaced_threads_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, module: str, question: str
) -> None:
    patched = ModuleType(module)
    setattr(patched, question, lambda name: True)
    monkeypatch.setitem(sys.modules, module, patched)
    keep = keeping(App("memory://"))
    with pytest.raises(InvalidState, match=r"nothing was stored: serve with threads .*gthread"):
        keep.enqueue(1)
    setattr(patched, question, lambda name: False)
    assert keep.enqueue(1).created
