"""What the configuration means for each queue, worked out once."""

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
    """The policy of each queue, by name; a name is validated when it is first met."""

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
            to_micros(config.lease, "lease"), config.priority, config.max_attempts, config.policy,
            self.retention.of(queue),
        )  # fmt: skip
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
