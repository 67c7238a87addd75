"""The background work of an open broker: the duties, each run in a loop by a ``Service``."""

from dayjob.duties.duties import BEATS, RECLAIM_INTERVAL

__all__ = ["BEATS", "RECLAIM_INTERVAL"]
