"""An app on each storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dayjob import App


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with App(url) as opened:
        yield opened


@pytest.fixture
def memory_app() -> Iterator[App]:
    """An app for tests that do not depend on the storage."""
    with App("memory://") as opened:
        yield opened
