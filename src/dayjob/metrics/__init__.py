"""Prometheus metrics of this process's jobs and of the store.

``measure(app)`` counts and times the app's jobs. ``Exposition`` renders these series with the store's own.
``MetricsServer`` serves them and a health check over HTTP. Needs ``dayjob[metrics]``.
"""

from dayjob.metrics.exposition import Exposition
from dayjob.metrics.meter import Meter, measure
from dayjob.metrics.server import MetricsServer

__all__ = ["Exposition", "Meter", "MetricsServer", "measure"]
