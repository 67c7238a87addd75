"""Child processes that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.processes import Spawn, spawning


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    async with spawning() as spawn:
        yield spawn
