"""Background chores of an open broker, each a small service with the same start and stop."""

from dayjob.duties.chores import Chores, Promote, Reap, Sweep, WatchCancels
from dayjob.duties.service import Duty, Service

__all__ = ["Chores", "Duty", "Promote", "Reap", "Service", "Sweep", "WatchCancels"]
