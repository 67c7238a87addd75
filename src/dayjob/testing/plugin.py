"""Fixtures for pytest: add ``pytest_plugins = ["dayjob.testing.plugin"]`` to your ``conftest.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dayjob.app import App
from dayjob.testing.clock import ManualClock
from dayjob.testing.running import sandbox


@pytest.fixture
def dayjob_clock() -> ManualClock:
    """A clock that only the test advances."""
    return ManualClock()


@pytest.fixture
def dayjob_sandbox(dayjob_clock: ManualClock) -> Iterator[Callable[[App], App]]:
    """A function that moves an app to a new memory store and ``dayjob_clock`` until the test ends."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(sandbox(app, dayjob_clock))
