"""dayjob: durable background jobs for Python, on the storage you have."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dayjob._version import __version__ as __version__
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
    QueueFull,
    ResultNotKept,
    TenantNotFound,
    UnknownTask,
)
from dayjob.model.config import BrokerConfig, QueueConfig, Retention
from dayjob.model.handler_exceptions import DeadLetter, JobCancelled, RetryLater, Snooze
from dayjob.model.job import (
    HIGH,
    LOW,
    NORMAL,
    CancelOutcome,
    EndedJob,
    Enqueued,
    Job,
    JobState,
    NewJob,
    QueueStats,
    Waited,
)
from dayjob.model.limits import Limit, LimitInfo, LimitSettings
from dayjob.model.retry import Retry
from dayjob.model.settlement import Settlement, SettleResult

if TYPE_CHECKING:
    from dayjob.app import App
    from dayjob.broker import Broker
    from dayjob.context import Context, current
    from dayjob.handle import JobHandle
    from dayjob.model.explanation import Explanation
    from dayjob.model.recurring import Recurring
    from dayjob.model.worker_info import WorkerInfo
    from dayjob.task import Task
    from dayjob.worker import Worker

_LAZY = {
    "App": "dayjob.app",
    "Broker": "dayjob.broker",
    "Context": "dayjob.context",
    "Explanation": "dayjob.model.explanation",
    "JobHandle": "dayjob.handle",
    "Recurring": "dayjob.model.recurring",
    "Task": "dayjob.task",
    "Worker": "dayjob.worker",
    "WorkerInfo": "dayjob.model.worker_info",
    "current": "dayjob.context",
}
"""Modules that need asyncio are imported on first use, so that ``import dayjob`` stays fast."""

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "App",
    "BadPayload",
    "Broker",
    "BrokerConfig",
    "CancelOutcome",
    "Closed",
    "ConfigError",
    "Context",
    "DayjobError",
    "DeadLetter",
    "EndedJob",
    "EngineFenced",
    "EngineUnavailable",
    "Enqueued",
    "Explanation",
    "InvalidState",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobState",
    "KvValueTooLarge",
    "LeaseLost",
    "Limit",
    "LimitInfo",
    "LimitSettings",
    "NewJob",
    "PayloadTooLarge",
    "QueueConfig",
    "QueueFull",
    "QueueStats",
    "Recurring",
    "ResultNotKept",
    "Retention",
    "Retry",
    "RetryLater",
    "SettleResult",
    "Settlement",
    "Snooze",
    "Task",
    "TenantNotFound",
    "UnknownTask",
    "Waited",
    "Worker",
    "WorkerInfo",
    "current",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dayjob' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
