from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store with its layout."""
    store = Store(tmp_path)
    assert store.run("migrate").exit_code == 0
    return store
