"""Prometheus metrics: what this process does with jobs, and how the store stands.

``measure(app)`` counts and times the app's jobs; ``Exposition`` renders that together with the store's own
figures; ``MetricsServer`` serves both, and a health check, over HTTP. Needs ``dayjob[metrics]``.
"""

from dayjob.metrics.exposition import Exposition
from dayjob.metrics.meter import Meter, measure
from dayjob.metrics.server import MetricsServer

__all__ = ["Exposition", "Meter", "MetricsServer", "measure"]
