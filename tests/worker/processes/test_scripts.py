"""Scripts whose own tasks run in child processes, or fork processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.workers import with_timeout

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


SCRIPT = """
import asyncio, os, sys, threading
from dayjob import App, Context, JobState, Worker

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

ENQUEUING = """
@app.task(pool="process")
def enqueue() -> str:
    return double.enqueue(1).id

@app.task(pool="process")
async def aenqueue() -> str:
    return (await double.aenqueue(1)).id

@app.task(pool="process")
def follow_up(ctx: Context) -> None:
    ctx.then(double.bind(1))

if __name__ == "__main__":
    handles = [task.enqueue() for task in (enqueue, aenqueue, follow_up)]
    asyncio.run(Worker(app).run_until_idle())
    for handle in handles:
        job = app.call(lambda: app.broker.get(handle.id))
        state = "done" if job.state is JobState.DONE else "waits"  # a failed one may be due again
        print(state, (job.last_error or "").partition("\\n")[0])
    print(app.call(lambda: app.broker.stats("default")).done)
"""

FORKING = """
def fork(way: str) -> int:
    child = os.fork()
    if child == 0:
        if way == "exit":
            sys.exit(7)
        if way == "raise":
            raise ValueError("the helper fails")
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

@app.task
async def fork_async(way: str) -> int:
    return fork(way)

if __name__ == "__main__":
    sys.stderr = open(os.devnull, "w")
    kinds = (app.task(fork), fork_async)
    handles = [task.enqueue(way) for task in kinds for way in ("exit", "raise", "return")]
    asyncio.run(Worker(app).run_until_idle())
    print([handle.result(timeout=10) for handle in handles])
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
        output, _ = await with_timeout(process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode()


async def test_a_scripts_own_tasks_run_in_children(tmp_path: Path, url: str) -> None:
    assert await run_script(script(tmp_path, GUARDED, url)) == "42\n"


async def test_a_script_without_a_main_guard_gets_the_remedy(tmp_path: Path, url: str) -> None:
    output = await run_script(script(tmp_path, UNGUARDED, url))
    assert "ended with exit code 1 before it started the job" in output
    assert 'put `if __name__ == "__main__":` before' in output


async def test_a_child_refuses_to_enqueue_in_memory(tmp_path: Path) -> None:
    """Its memory is not the worker's, so the job would be lost. Follow-ups are stored by the worker."""
    output = await run_script(script(tmp_path, ENQUEUING, "memory://shop"))
    refused = (
        "waits dayjob.errors.InvalidState: memory://shop: its jobs are in the memory of the worker, and "
        "this is a child process: enqueue with ctx.then(task.bind(...)), or use sqlite:///"
    )
    assert output.splitlines()[-4:] == [refused, refused, "done ", "2"]


async def test_a_process_forked_in_a_thread_or_a_coroutine_ends_with_the_handler(
    tmp_path: Path, url: str
) -> None:
    assert await run_script(script(tmp_path, FORKING, url)) == f"{[7, 1, 0] * 2}\n"


@pytest.mark.parametrize("text", [STALLING, IDLING], ids=["busy", "idle"])
async def test_no_child_outlives_a_killed_worker(tmp_path: Path, url: str, text: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *script(tmp_path, text, url), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        assert await with_timeout(process.stdout.readline())
    finally:
        process.kill()
        await process.wait()
    # The pipe ends when neither the worker nor a child of it has it open.
    assert await with_timeout(process.stdout.read()) == b""
