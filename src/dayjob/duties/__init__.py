"""Background chores of an open broker, each a small service with the same start and stop."""

from dayjob.duties.chores import Chores, Promote, Reap, Sweep, WatchCancels
from dayjob.duties.service import Service

__all__ = ["Chores", "Promote", "Reap", "Service", "Sweep", "WatchCancels"]
