"""Workers claim jobs, run their tasks, and settle them."""

from dayjob.worker.worker import Worker

__all__ = ["Worker"]
