"""The app of the process tasks on a file of the test, and a check that no process is left."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dayjob import App
from tests.worker import process_tasks as tasks
from tests.worker.processes.observe import own_children


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
async def app(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setenv("PROCESS_TASKS_URL", url)
    monkeypatch.setattr(tasks.app, "url", url)
    yield tasks.app
    await tasks.app.close()


@pytest.fixture(autouse=True)
def nothing_left_behind(app: App) -> Iterator[None]:
    """Check that every child and its threads have ended with the worker."""
    yield
    assert [thread.name for thread in threading.enumerate() if app.name in thread.name] == []
    assert [line for line in own_children() if "resource_tracker" not in line] == []
