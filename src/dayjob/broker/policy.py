"""The settings of each queue, computed once from the configuration."""

from __future__ import annotations

from msgspec import Struct

from dayjob.engines.base import RetentionByQueue, RetentionTimes
from dayjob.model.config import BrokerConfig, Retention
from dayjob.model.durations import Duration, to_micros
from dayjob.model.names import check_queue
from dayjob.model.retry import Retry

_CACHED = 10_000


class Policy(Struct, frozen=True):
    """One queue's settings, durations in microseconds."""

    lease: int
    priority: int
    max_attempts: int
    retry: Retry
    retention: RetentionTimes


class Policies:
    """The policy of each queue, by name. A name is validated at its first use."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._known: dict[str, Policy] = {}
        self.retention = RetentionByQueue(
            retention_times(config.default.retention or config.retention),
            {
                name: retention_times(queue.retention or config.retention)
                for name, queue in config.queues.items()
            },
        )

    def of(self, queue: str) -> Policy:
        try:
            return self._known[queue]
        except (KeyError, TypeError):
            check_queue(queue)
        config = self._config.queue(queue)
        policy = Policy(
            lease=to_micros(config.lease, "lease"),
            priority=config.priority,
            max_attempts=config.max_attempts,
            retry=config.policy,
            retention=self.retention.of(queue),
        )
        if len(self._known) >= _CACHED:
            self._known.clear()
        self._known[queue] = policy
        return policy


def retention_times(retention: Retention) -> RetentionTimes:
    return RetentionTimes(
        done=_kept(retention.done, unset=0),
        dead=_kept(retention.dead, unset=None),
        cancelled=_kept(retention.cancelled, unset=0),
    )


def _kept(duration: Duration | None, unset: int | None) -> int | None:
    return unset if duration is None else to_micros(duration, "retention")
