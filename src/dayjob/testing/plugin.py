"""Fixtures for pytest: put ``pytest_plugins = ["dayjob.testing.plugin"]`` into your ``conftest.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dayjob.app import App
from dayjob.testing.clock import ManualClock
from dayjob.testing.running import sandbox


@pytest.fixture
def dayjob_clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def dayjob_sandbox(dayjob_clock: ManualClock) -> Iterator[Callable[[App], App]]:
    """Puts an app on a fresh memory store and on ``dayjob_clock`` until the test ends."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(sandbox(app, dayjob_clock))
