"""The fixtures for pytest, which finds this module by its entry point.

Every run of pytest imports it, so it imports the rest of dayjob on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dayjob.app import App
    from dayjob.testing import ManualClock


@pytest.fixture
def dayjob_clock() -> ManualClock:
    """A clock that only the test advances."""
    from dayjob.testing import ManualClock

    return ManualClock()


@pytest.fixture
def dayjob_sandbox(dayjob_clock: ManualClock) -> Iterator[Callable[[App], App]]:
    """A function that moves an app to a new memory store and ``dayjob_clock`` until the test ends."""
    from dayjob.testing import sandbox

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(sandbox(app, dayjob_clock))
