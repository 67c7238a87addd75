"""The Redis engine: jobs on a Redis or Valkey server, for fleets that need the lowest latency."""

from __future__ import annotations

from dayjob.engines.redis.engine import RedisEngine
from dayjob.engines.redis.settings import read_settings
from dayjob.engines.registry import Location
from dayjob.runtime.clock import Clock


def create(location: Location, clock: Clock | None) -> RedisEngine:
    """``redis://user:password@host:6379/0``, ``rediss://`` for TLS, or ``unix:///path/redis.sock``."""
    return RedisEngine(read_settings(location), clock)
