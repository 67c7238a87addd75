"""``dayjob worker`` on a storage with one owner: who is refused, who takes over, and how the other ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Command, Start, starting

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


def words(worker: Command) -> str:
    return " ".join(worker.said().split())


def test_a_worker_takes_over_and_the_other_stops_and_says_why(start: Start) -> None:
    first = start("jobs:app")
    first.says("started")
    refused = start("jobs:app")
    assert refused.ended() == 3
    assert f"process {first.pid} has it open" in words(refused)
    assert "--take-over" in words(refused)
    second = start("jobs:app", "--take-over")
    second.says("started")
    assert first.ended() == 1
    assert "another process has taken the database over" in words(first)
    assert "Traceback" not in first.said()
    assert second.stopped() == 0
    third = start("jobs:app", "--burst")
    assert third.ended() == 0, third.said()


def test_a_supervised_worker_takes_over_once(start: Start) -> None:
    first = start("jobs:app", "--take-over", "--max-jobs", "5")
    first.says("started")
    second = start("jobs:app", "--take-over")
    second.says("started")
    first.says("ended with exit code 1")
    first.says("has it open")
    assert second.stopped() == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("jobs:app", "--processes", "2"), "file:// is for one process at a time"),
        (("plain:app", "--take-over"), "sqlite:// has no single owner"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    start: Start, arguments: tuple[str, ...], reason: str
) -> None:
    worker = start(*arguments)
    assert worker.ended() == 2
    assert reason in words(worker).replace("│ ", "")
