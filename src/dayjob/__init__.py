"""dayjob: durable background jobs for Python, on the storage you have."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dayjob._version import __version__ as __version__
from dayjob.config import BrokerConfig, QueueConfig, Retention
from dayjob.errors import (
    BadPayload,
    Closed,
    ConfigError,
    DayjobError,
    EngineFenced,
    EngineUnavailable,
    InvalidState,
    JobFailed,
    KvValueTooLarge,
    LeaseLost,
    PayloadTooLarge,
    ResultNotKept,
    TenantNotFound,
    UnknownTask,
)
from dayjob.job import (
    HIGH,
    LOW,
    NORMAL,
    CancelOutcome,
    Enqueued,
    Job,
    JobState,
    NewJob,
    QueueStats,
    Waited,
)
from dayjob.retry import Retry
from dayjob.settlement import Settlement, SettleResult

if TYPE_CHECKING:
    from dayjob.broker import Broker

_LATER = {"Broker": "dayjob.broker"}
"""What needs asyncio is imported when it is first asked for, so that ``import dayjob`` stays cheap."""

__all__ = [
    "HIGH", "LOW", "NORMAL", "BadPayload", "Broker", "BrokerConfig", "CancelOutcome", "Closed", "ConfigError",
    "DayjobError", "EngineFenced", "EngineUnavailable", "Enqueued", "InvalidState", "Job", "JobFailed",
    "JobState", "KvValueTooLarge", "LeaseLost", "NewJob", "PayloadTooLarge", "QueueConfig", "QueueStats",
    "ResultNotKept", "Retention", "Retry", "SettleResult", "Settlement", "TenantNotFound", "UnknownTask",
    "Waited",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'dayjob' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
