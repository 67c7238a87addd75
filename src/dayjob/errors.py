"""The errors of dayjob.

Each message has the value, the reason and the remedy. Arguments of the wrong type or out of range raise
``TypeError`` and ``ValueError``.
"""

from __future__ import annotations


class DayjobError(Exception):
    """The base of all errors below."""


class ConfigError(DayjobError, ValueError):
    """A URL or a configuration field is invalid. Raised when it is built or opened."""


class PayloadTooLarge(DayjobError, ValueError):
    """A payload or result exceeds the configured limit. Nothing was written."""

    def __init__(self, size: int, max: int, kind: str = "payload") -> None:
        super().__init__(
            f"the {kind} has {size:,} bytes and the limit is {max:,}: "
            "store the data elsewhere and pass a reference, or raise BrokerConfig(max_payload=...)"
        )
        self.size = size
        self.max = max


class KvValueTooLarge(DayjobError, ValueError):
    """A kv value exceeds the limit. Nothing was written."""

    def __init__(self, size: int, max: int) -> None:
        super().__init__(
            f"the kv value has {size:,} bytes and the limit is {max:,}: "
            "split it over several keys or store it elsewhere"
        )
        self.size = size
        self.max = max


class QueueFull(DayjobError):
    """The queue has ``max_pending`` jobs. Nothing of the call was stored."""

    def __init__(self, queue: str, waiting: int, added: int, max_pending: int) -> None:
        super().__init__(
            f"queue {queue!r} has {waiting:,} pending jobs, and {added:,} more would exceed "
            f"max_pending={max_pending:,}: "
            "enqueue later, add workers, or raise QueueConfig(max_pending=...)"
        )
        self.queue = queue
        self.max_pending = max_pending


class LeaseLost(DayjobError):
    """The claim is no longer current, so its settlement or renewal changed nothing."""


class InvalidState(DayjobError):
    """The operation is not possible in the current state."""


class EngineUnavailable(DayjobError):
    """The storage did not reply in time. The operation may be repeated."""


class EngineFenced(DayjobError):
    """Another process took over the storage, or its file was replaced. This process must stop using it."""


class Closed(DayjobError):
    """The broker is not open, or not in this process or event loop."""


class UnknownTask(DayjobError):
    """No function is registered under the task's name."""


class BadPayload(DayjobError):
    """A stored payload doesn't fit the parameters of its task."""


class JobFailed(DayjobError):
    """The job has no result: it ended dead or cancelled."""


class ResultNotKept(DayjobError):
    """The job ended, and its record or result is not kept."""


class TenantNotFound(DayjobError):
    """The tenant scope has no tenant of this name."""
