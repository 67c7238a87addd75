"""The read model: the command line, the dashboard and the metrics read the store through it.

Answers are plain values with stable fields, ready for JSON. The cost of an answer does not grow with the
number of jobs: a search examines a bounded number of records and returns a cursor. Only ``cancel``,
``requeue`` and ``purge`` change jobs: those that a filter selects, in bounded memory.
"""

from dayjob.inspect.dead import DeadGroups, dead_groups, dead_page, error_line, error_pattern
from dayjob.inspect.inspector import Health, Inspector, WorkerView
from dayjob.inspect.misfits import MisfitReport, find_misfits
from dayjob.inspect.overview import Overview, Point, QueueView, sum_stats
from dayjob.inspect.redaction import Redaction
from dayjob.inspect.search import EXAMINED, Filter, Page
from dayjob.inspect.tasks import task_statistics

__all__ = [
    "EXAMINED", "DeadGroups", "Filter", "Health", "Inspector", "MisfitReport", "Overview", "Page", "Point",
    "QueueView", "Redaction", "WorkerView", "dead_groups", "dead_page", "error_line", "error_pattern",
    "find_misfits", "sum_stats", "task_statistics",
]  # fmt: skip
