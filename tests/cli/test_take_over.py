"""``dayjob worker`` on a storage with one owner: refusal, takeover, and the end of the fenced worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import Command, Start, starting

APP = """
from dayjob.app import App

app = App({url!r})

@app.task(name="wait", queue="waits")
async def wait() -> None: ...
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds ``jobs.py``, an app on a folder as an object store, and ``plain.py``, one on SQLite."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "jobs.py").write_text(APP.format(url=f"file://{folder}/store"))
    (folder / "plain.py").write_text(APP.format(url="sqlite:///jobs.db"))
    return folder


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Iterator[Start]:
    with starting(folder, tmp_path, {"PYTHONDONTWRITEBYTECODE": "1"}) as start:
        yield start


def unwrapped_output(worker: Command) -> str:
    return " ".join(worker.output().split())


def test_a_worker_takes_over_and_the_fenced_worker_stops_with_the_reason(start: Start) -> None:
    first = start("jobs:app")
    first.wait_for_output("started")
    refused = start("jobs:app")
    assert refused.wait() == 3
    assert f"process {first.pid} has it open" in unwrapped_output(refused)
    assert "--take-over" in unwrapped_output(refused)
    second = start("jobs:app", "--take-over")
    second.wait_for_output("started")
    assert first.wait() == 1
    assert "another process has taken the database over" in unwrapped_output(first)
    assert "Traceback" not in first.output()
    assert second.stop() == 0
    third = start("jobs:app", "--burst")
    assert third.wait() == 0, third.output()


def test_a_supervised_worker_takes_over_once(start: Start) -> None:
    first = start("jobs:app", "--take-over", "--max-jobs", "5")
    first.wait_for_output("started")
    second = start("jobs:app", "--take-over")
    second.wait_for_output("started")
    first.wait_for_output("ended with exit code 1")
    first.wait_for_output("has it open")
    assert second.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("jobs:app", "--processes", "2"), "file:// allows one process at a time"),
        (("plain:app", "--take-over"), "sqlite:// has no single owner"),
    ],
)
def test_options_that_the_storage_does_not_support_are_refused_with_the_reason(
    start: Start, arguments: tuple[str, ...], reason: str
) -> None:
    worker = start(*arguments)
    assert worker.wait() == 2
    assert reason in unwrapped_output(worker).replace("│ ", "")
