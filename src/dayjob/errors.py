"""Every error that dayjob raises on purpose.

Each message says what was wrong, with the value, and what to do about it. Arguments of the wrong
type or out of range are plain ``TypeError`` and ``ValueError``, as everywhere in Python.
"""

from __future__ import annotations


class DayjobError(Exception):
    """The base of all errors below."""


class ConfigError(DayjobError, ValueError):
    """A URL or a configuration field that can't be used; it is refused when it is built or opened."""


class PayloadTooLarge(DayjobError, ValueError):
    """A payload or result over the configured limit; nothing was written."""

    def __init__(self, size: int, max: int, what: str = "payload") -> None:
        super().__init__(
            f"the {what} has {size:,} bytes and the limit is {max:,}: "
            "store the data elsewhere and pass a reference, or raise BrokerConfig(max_payload=...)"
        )
        self.size = size
        self.max = max


class KvValueTooLarge(DayjobError, ValueError):
    """A key-value value over the limit; nothing was written."""

    def __init__(self, size: int, max: int) -> None:
        super().__init__(
            f"the kv value has {size:,} bytes and the limit is {max:,}: "
            "split it over several keys or store it elsewhere"
        )
        self.size = size
        self.max = max


class LeaseLost(DayjobError):
    """The claim is no longer current, so its settlement or renewal changed nothing."""


class InvalidState(DayjobError):
    """The operation does not fit the state that its object is in."""


class EngineUnavailable(DayjobError):
    """The storage did not answer in time; the operation may be repeated."""


class EngineFenced(DayjobError):
    """Another process took the storage over; this one must stop using it."""


class Closed(DayjobError):
    """The broker is not open (any more), or not in this process or event loop."""


class UnknownTask(DayjobError):
    """No function is registered under the task's name."""


class BadPayload(DayjobError):
    """A stored payload doesn't fit the parameters of its task."""


class JobFailed(DayjobError):
    """The job whose result was asked for ended dead or cancelled."""


class ResultNotKept(DayjobError):
    """The job ended, and its record, with the result, is no longer kept."""


class TenantNotFound(DayjobError):
    """The tenant scope does not know the job's tenant."""
