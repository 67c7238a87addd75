from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store that is there, and empty."""
    made = Store(tmp_path)
    assert made.run("migrate").exit_code == 0
    return made
