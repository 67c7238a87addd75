"""The engines under test. A new one is one entry in ``ENGINES``, described in ``storages``."""

from __future__ import annotations

from tests.conformance.storages.base import EngineUnderTest
from tests.conformance.storages.memory import MEMORY
from tests.conformance.storages.postgres import POSTGRES
from tests.conformance.storages.redis import REDIS
from tests.conformance.storages.slatedb import SLATEDB
from tests.conformance.storages.sqlite import SQLITE

ENGINES = [MEMORY, SQLITE, POSTGRES, REDIS, SLATEDB]

__all__ = ["ENGINES", "EngineUnderTest"]
