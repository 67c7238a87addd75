"""Scripts whose own tasks run in child processes."""

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
