"""Background chores of an open broker, each a small service with the same start and stop."""

from dayjob.duties.chores import (
    BEATS,
    Chores,
    Lead,
    Led,
    Promote,
    Reap,
    Reclaim,
    Recur,
    Sample,
    Sweep,
    WatchCancels,
)
from dayjob.duties.service import Duty, Service

__all__ = [
    "BEATS",
    "Chores",
    "Duty",
    "Lead",
    "Led",
    "Promote",
    "Reap",
    "Reclaim",
    "Recur",
    "Sample",
    "Service",
    "Sweep",
    "WatchCancels",
]
