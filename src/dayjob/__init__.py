"""dayjob: durable background jobs for Python, on the storage you have."""

from dayjob._version import __version__ as __version__
from dayjob.broker import Broker
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
)  # fmt: skip
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
)  # fmt: skip
from dayjob.retry import Retry
from dayjob.settlement import Settlement, SettleResult

__all__ = [
    "HIGH", "LOW", "NORMAL", "BadPayload", "Broker", "BrokerConfig", "CancelOutcome", "Closed", "ConfigError",
    "DayjobError", "EngineFenced", "EngineUnavailable", "Enqueued", "InvalidState", "Job", "JobFailed",
    "JobState", "KvValueTooLarge", "LeaseLost", "NewJob", "PayloadTooLarge", "QueueConfig", "QueueStats",
    "ResultNotKept", "Retention", "Retry", "SettleResult", "Settlement", "TenantNotFound", "UnknownTask",
    "Waited",
]  # fmt: skip
