"""The Redis engine: jobs on a Redis or Valkey server, for fleets that want the lowest latency."""

from __future__ import annotations

from dayjob.engines.redis.engine import RedisEngine
from dayjob.engines.redis.place import place_of
from dayjob.engines.registry import Location
from dayjob.runtime.clock import Clock


def create(location: Location, clock: Clock) -> RedisEngine:
    """``redis://user:password@host:6379/0``, ``rediss://`` for TLS, or ``unix:///path/redis.sock``.

    ``?prefix=`` names the namespace, ``?patience=`` the seconds that an outage is ridden out.
    """
    return RedisEngine(place_of(location), clock)
