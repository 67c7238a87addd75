"""Configuration. Invalid values raise ``ConfigError`` when the object is built."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from dayjob.errors import ConfigError
from dayjob.model.durations import SECOND, Duration, to_micros
from dayjob.model.job import MAX_PRIORITY, NORMAL
from dayjob.model.limits import MAX_UNITS, Limit
from dayjob.model.names import as_config_error, check_queue
from dayjob.model.retry import DelayFunction, Retry, as_retry

MAX_PAYLOAD = 1024 * 1024
MAX_ATTEMPTS = 2**31 - 1
MAX_WEIGHT = 1000


def check_priority(value: object, name: str, error: type[ValueError] = ValueError) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        raise error(f"{name}={value!r}: pass a whole number from 0 (runs first) to {MAX_PRIORITY}")


def check_max_attempts(value: object, name: str, error: type[ValueError] = ValueError) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ATTEMPTS:
        raise error(f"{name}={value!r}: pass a whole number of runs, 1 or more")


def _check_duration(value: Duration, name: str) -> int:
    with as_config_error():
        return to_micros(value, name)


def _check_type(value: object, wanted: object, name: str) -> None:
    if not isinstance(value, wanted):  # type: ignore[arg-type]
        shown = getattr(wanted, "__name__", str(wanted))
        raise ConfigError(f"{name}={value!r} is a {type(value).__name__}: pass a {shown}")


def _check_whole(value: object, name: str, most: int = MAX_UNITS) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name}={value!r}: pass a whole number from 1 to {most:,}")


class Retention(Struct, frozen=True):
    """How long finished jobs are kept, counted from their finish time.

    None: done and cancelled jobs are not kept; dead jobs are kept for ever.
    """

    done: Duration | None = None
    dead: Duration | None = timedelta(days=7)
    cancelled: Duration | None = None

    def __post_init__(self) -> None:
        for name in ("done", "dead", "cancelled"):
            value = getattr(self, name)
            if value is not None:
                _check_duration(value, f"Retention.{name}")


class QueueConfig(Struct, frozen=True):
    """The settings of a queue's jobs, unless the call or the task has its own.

    ``max_attempts`` defaults to that of ``retry``.
    """

    max_attempts: int = cast("int", None)
    lease: Duration = 30
    priority: int = NORMAL
    retry: Retry | DelayFunction = Retry.exponential(base=1, cap=300)
    retention: Retention | None = None
    limit: Limit | None = None
    """A limit on the queue as a whole, over all workers."""
    fair: Literal["tenant"] | None = None
    """Let the tenants of jobs take turns within each priority."""
    weights: Mapping[str, int] = {}
    """The share of a tenant on a fair queue. 1 unless given."""
    max_pending: int | None = None
    """Refuse an enqueue with ``QueueFull`` if more jobs than this would be pending or limited."""

    def __post_init__(self) -> None:
        force_setattr(self, "retry", as_retry(self.retry, "QueueConfig.retry"))
        if cast("int | None", self.max_attempts) is None:
            force_setattr(self, "max_attempts", self.policy.attempts)
        check_max_attempts(self.max_attempts, "QueueConfig.max_attempts", ConfigError)
        check_priority(self.priority, "QueueConfig.priority", ConfigError)
        if _check_duration(self.lease, "QueueConfig.lease") == 0:
            raise ConfigError("QueueConfig.lease=0: a claim needs time to run; pass some seconds")
        _check_type(self.retention, Retention | None, "QueueConfig.retention")
        _check_type(self.limit, Limit | None, "QueueConfig.limit")
        if self.limit is not None and (self.limit.name or self.limit.key is not None):
            raise ConfigError(
                f"QueueConfig.limit={self.limit!r} is for the queue as a whole: leave out name and key"
            )
        if self.fair not in (None, "tenant"):
            raise ConfigError(f"QueueConfig.fair={self.fair!r}: pass 'tenant', or leave it out")
        _check_type(self.weights, Mapping, "QueueConfig.weights")
        for tenant, weight in self.weights.items():
            _check_whole(weight, f"QueueConfig.weights[{tenant!r}]", MAX_WEIGHT)
        if self.weights and self.fair is None:
            raise ConfigError("QueueConfig.weights is for fair queues: pass fair='tenant' with it")
        if self.max_pending is not None:
            _check_whole(self.max_pending, "QueueConfig.max_pending")

    @property
    def policy(self) -> Retry:
        assert isinstance(self.retry, Retry)
        return self.retry


class BrokerConfig(Struct, frozen=True):
    """The settings of a broker. ``queues`` overrides ``default`` by queue."""

    default: QueueConfig = QueueConfig()
    queues: Mapping[str, QueueConfig] = {}
    retention: Retention = Retention()
    reap_interval: Duration = 5
    promote_interval: Duration = 1
    sweep_interval: Duration = 60
    dead_after: Duration = 15
    max_payload: int = MAX_PAYLOAD
    duties: bool = True

    def __post_init__(self) -> None:
        _check_type(self.default, QueueConfig, "BrokerConfig.default")
        _check_type(self.queues, Mapping, "BrokerConfig.queues")
        for name, queue in self.queues.items():
            with as_config_error("BrokerConfig.queues: "):
                check_queue(name)
            _check_type(queue, QueueConfig, f"BrokerConfig.queues[{name!r}]")
        _check_type(self.retention, Retention, "BrokerConfig.retention")
        for name in ("reap_interval", "promote_interval", "sweep_interval"):
            if _check_duration(getattr(self, name), f"BrokerConfig.{name}") == 0:
                raise ConfigError(f"BrokerConfig.{name}=0: pass some seconds")
        if _check_duration(self.dead_after, "BrokerConfig.dead_after") < SECOND:
            raise ConfigError(f"BrokerConfig.dead_after={self.dead_after!r}: pass 1 second or more")
        if (
            isinstance(self.max_payload, bool)
            or not isinstance(self.max_payload, int)
            or self.max_payload < 0
        ):
            raise ConfigError(f"BrokerConfig.max_payload={self.max_payload!r}: pass a number of bytes")
        _check_type(self.duties, bool, "BrokerConfig.duties")

    def queue(self, name: str) -> QueueConfig:
        return self.queues.get(name, self.default)
