"""The PostgreSQL engine: jobs in a schema of a database, for fleets of workers on many machines."""

from __future__ import annotations

from dayjob.engines.postgres.engine import PostgresEngine
from dayjob.engines.postgres.migrate import PostgresLayout
from dayjob.engines.postgres.settings import read_settings
from dayjob.engines.registry import Location
from dayjob.runtime.clock import Clock


def create(location: Location, clock: Clock | None) -> PostgresEngine:
    """``postgresql://user@host/database`` with the options of ``read_settings``."""
    return PostgresEngine(read_settings(location), clock)


def layout(location: Location) -> PostgresLayout:
    return PostgresLayout(read_settings(location))
