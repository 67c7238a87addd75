from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store with its layout."""
    made = Store(tmp_path)
    assert made.run("migrate").exit_code == 0
    return made
