"""The background work of an open broker: the duties, each run in a loop by a ``Service``."""

from dayjob.duties.duties import (
    BEATS,
    RECLAIM_INTERVAL,
    Lead,
    Led,
    Promote,
    Reap,
    Reclaim,
    Recur,
    Rewake,
    Sample,
    Sweep,
    WatchCancels,
)
from dayjob.duties.ended import EndedJobs, OnEnded
from dayjob.duties.service import Duty, Service

__all__ = [
    "BEATS",
    "RECLAIM_INTERVAL",
    "Duty",
    "EndedJobs",
    "Lead",
    "Led",
    "OnEnded",
    "Promote",
    "Reap",
    "Reclaim",
    "Recur",
    "Rewake",
    "Sample",
    "Service",
    "Sweep",
    "WatchCancels",
]
