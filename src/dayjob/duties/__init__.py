"""The background work of an open broker: one module per duty, run in a loop by ``Service``."""

from dayjob.duties.lead import Lead, Led
from dayjob.duties.promote import Promote
from dayjob.duties.reap import Reap
from dayjob.duties.reclaim import BEATS, Reclaim
from dayjob.duties.recur import Recur
from dayjob.duties.sample import Sample
from dayjob.duties.service import Duty, Service
from dayjob.duties.sweep import Sweep
from dayjob.duties.watch_cancels import WatchCancels

__all__ = [
    "BEATS",
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
