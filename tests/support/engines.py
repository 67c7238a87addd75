"""The engines under test. A new engine is one entry in ``ENGINES``, described in ``storages``."""

from __future__ import annotations

from tests.support.storages.base import EngineUnderTest
from tests.support.storages.memory import MEMORY
from tests.support.storages.postgres import POSTGRES
from tests.support.storages.redis import REDIS
from tests.support.storages.slatedb import SLATEDB
from tests.support.storages.sqlite import SQLITE

ENGINES = [MEMORY, SQLITE, POSTGRES, REDIS, SLATEDB]

__all__ = ["ENGINES", "EngineUnderTest"]
