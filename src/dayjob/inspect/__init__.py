"""The read model: the command line, the dashboard and the metrics read the store through it.

Answers are plain values with stable fields, ready for JSON. The cost of an answer does not grow with the
number of jobs: a search examines a bounded number of records and returns a cursor. Only ``cancel`` changes
jobs: those that a filter selects, in bounded memory.
"""

from dayjob.inspect.cancel import Cancelled
from dayjob.inspect.dead import DeadGroup, DeadGroups, error_line, error_pattern
from dayjob.inspect.inspector import Health, Inspector, WorkerView
from dayjob.inspect.overview import Overview, Point, QueueView, sum_stats
from dayjob.inspect.redaction import Redaction
from dayjob.inspect.search import EXAMINED, Filter, Page

__all__ = [
    "EXAMINED", "Cancelled", "DeadGroup", "DeadGroups", "Filter", "Health", "Inspector", "Overview", "Page",
    "Point", "QueueView", "Redaction", "WorkerView", "error_line", "error_pattern", "sum_stats",
]  # fmt: skip
