"""Validates all arguments of a caller before any write. Missing values are set from the queue settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import astuple

from dayjob.engines.base import Insertion, RetentionByQueue, RetentionTimes, SettleOp
from dayjob.errors import PayloadTooLarge
from dayjob.model.config import BrokerConfig, Retention, check_max_attempts, check_priority
from dayjob.model.durations import SECOND, Duration, to_instant, to_micros
from dayjob.model.job import NewJob, check_dedup, id_key
from dayjob.model.lifecycle import ACK, SETTLEMENTS, Transition
from dayjob.model.limits import (
    MAX_LIMITS,
    QUEUE,
    Limit,
    Units,
    charges_of,
    check_bucket,
    check_units,
    limit_name,
    queue_bucket,
)
from dayjob.model.names import (
    KEY_BYTES,
    check_headers,
    check_kv,
    check_name,
    check_queue,
    check_text,
    clean_error,
)
from dayjob.model.retry import Retry
from dayjob.model.settlement import Settlement
from dayjob.runtime import entropy
from dayjob.runtime.ids import new_key, new_keys

_CACHED = 10_000

TURNS = 2**20
"""The turns that a job of a tenant with weight 1 takes on a fair queue."""


class Policy(Struct, frozen=True):
    """One queue's settings, durations in microseconds."""

    lease: int
    priority: int
    max_attempts: int
    retry: Retry
    retention: RetentionTimes
    limit: Limit | None
    fair: bool
    weights: Mapping[str, int]
    max_pending: int | None

    @property
    def is_plain(self) -> bool:
        """Whether it adds nothing to a job but its priority and its attempts."""
        return self.limit is None and not self.fair and self.max_pending is None


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
            limit=config.limit,
            fair=config.fair is not None,
            weights=config.weights,
            max_pending=config.max_pending,
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


_NO_HEADERS: dict[str, str] = {}

_OPTIONS = NewJob.__struct_fields__.index("task") + 1
"""The fields of a new job from here on are options. Before are the queue, the payload and the task."""

_NO_OPTIONS = astuple(NewJob(""))[_OPTIONS:]


class Validator:
    """Turns new jobs into insertions and settlements into ops. Raises for a value that can't be stored."""

    def __init__(self, policies: Policies, max_payload: int) -> None:
        self.policies = policies
        self._max_payload = max_payload

    def insertions(self, jobs: Sequence[NewJob]) -> tuple[Insertion, ...]:
        """Return the insertions of a batch.

        Most batches are calls of one task without options. Of a call like the one before, only the payload
        is validated.
        """
        found: list[Insertion] = []
        last: Insertion | None = None
        for job, key in zip(jobs, new_keys(len(jobs)), strict=True):
            plain = type(job) is NewJob and astuple(job)[_OPTIONS:] == _NO_OPTIONS
            if plain and last is not None and job.queue == last.queue and job.task == last.task:
                payload = self._bytes(job.payload, "payload")
                insertion = Insertion(
                    key, last.queue, last.task, payload, last.priority, last.max_attempts, _NO_HEADERS
                )
            else:
                insertion = self._insertion(job, key)
                last = insertion if plain and self.policies.of(job.queue).is_plain else None
            found.append(insertion)
        return tuple(found)

    def insertion(self, job: NewJob) -> Insertion:
        return self._insertion(job, new_key())

    def _insertion(self, job: NewJob, key: bytes) -> Insertion:
        if not isinstance(job, NewJob):
            raise TypeError(f"{job!r} is a {type(job).__name__}: pass a NewJob")
        policy = self.policies.of(job.queue)
        payload = self._bytes(job.payload, "payload")
        if job.task:
            check_name(job.task, "task name", KEY_BYTES)
        elif job.task != "":
            check_text(job.task, "task name")
        insertion = Insertion(
            key if job.id is None else id_key(job.id),
            job.queue,
            job.task,
            payload,
            policy.priority,
            policy.max_attempts,
            _NO_HEADERS,
        )
        if job.id is not None:
            insertion.reserve_id = job.reserve_id
        if job.priority is not None:
            check_priority(job.priority, "priority")
            insertion.priority = job.priority
        if job.max_attempts is not None:
            check_max_attempts(job.max_attempts, "max_attempts")
            insertion.max_attempts = job.max_attempts
        if job.headers is not None:
            check_headers(job.headers)
            insertion.headers = dict(job.headers)
        if job.tenant is not None:
            check_name(job.tenant, "tenant", KEY_BYTES)
            insertion.tenant = job.tenant
        if job.dedup_until not in ("claimed", "settled"):
            raise ValueError(f"dedup_until={job.dedup_until!r}: pass 'claimed' or 'settled'")
        if job.dedup_key is not None:
            check_name(job.dedup_key, "dedup key", KEY_BYTES)
            insertion.dedup_key = job.dedup_key
            insertion.dedup_until = job.dedup_until
            _set_dedup(insertion, job)
        elif job.dedup is not None or job.dedup_for is not None:
            given = f"dedup={job.dedup!r}" if job.dedup_for is None else f"dedup_for={job.dedup_for!r}"
            raise ValueError(f"{given} without a key: pass dedup_key, too")
        if job.kv is not None:
            insertion.kv = check_kv(job.kv)
        _set_times(insertion, job)
        if job.limits or job.units or policy.limit is not None:
            insertion.limits = self._limits(job, policy)
        if policy.fair:
            tenant = job.tenant or ""
            insertion.fair = (tenant, TURNS // policy.weights.get(tenant, 1))
        insertion.max_pending = policy.max_pending
        return insertion

    def _limits(self, job: NewJob, policy: Policy) -> Units:
        """Return the buckets of the job in the order given, that of its queue last."""
        if isinstance(job.limits, str) or not isinstance(job.limits, Sequence):
            raise TypeError(f"limits={job.limits!r}: pass a list of names")
        units = dict(job.units or {})
        buckets: dict[str, int] = {}
        for bucket in job.limits:
            check_bucket(bucket)
            buckets[bucket] = units.pop(limit_name(bucket), 1)
        if policy.limit is not None:
            buckets[queue_bucket(job.queue)] = own = units.pop(QUEUE, 1)
            check_units(own, QUEUE)
            policy.limit.check_units(own)
        units.pop(QUEUE, None)
        for name in units:
            raise ValueError(f"units of {name!r}, which is no limit of this job: pass it in limits")
        if len(buckets) > MAX_LIMITS:
            raise ValueError(f"{len(buckets)} limits: a job has {MAX_LIMITS} at most, with that of its queue")
        for bucket, number in buckets.items():
            check_units(number, bucket)
        return tuple(buckets.items())

    def settle_op(self, settlement: Settlement) -> SettleOp:
        job, transition = settlement.job, settlement.transition
        policy = self.policies.of(job.queue)
        retention = (
            policy.retention if settlement.retention is None else retention_times(settlement.retention)
        )
        op = SettleOp(job.key, job.claim, transition, retention, progress=settlement.progress)
        if settlement.charges:
            op.charges = charges_of(job, settlement.charges)
        if transition is ACK:
            if settlement.result is not None:
                op.result = self._bytes(settlement.result, "result")
            if settlement.enqueue:
                op.insert = tuple(self.insertion(new) for new in settlement.enqueue)
            if settlement.kv is not None:
                op.kv = check_kv(settlement.kv)
        elif transition is Transition.NACK:
            _set_backoff(op, settlement, policy)
        elif transition is Transition.DEAD_LETTER:
            op.error = error_text(settlement.error)
        elif transition is Transition.SNOOZE:
            if settlement.delay is None:
                raise ValueError("delay=None: a snooze needs a delay in seconds")
            op.delay = to_micros(settlement.delay, "delay")
            if settlement.error is not None:
                op.error = error_text(settlement.error)
        elif transition not in SETTLEMENTS:
            known = ", ".join(sorted(SETTLEMENTS))
            raise ValueError(f"transition={transition!r} settles nothing: pass one of {known}")
        return op

    def _bytes(self, value: object, what: str) -> bytes:
        if type(value) is bytes:
            if len(value) > self._max_payload:
                raise PayloadTooLarge(len(value), self._max_payload, what)
            return value
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"the {what} is a {type(value).__name__}: encode it to bytes")
        size = value.nbytes if isinstance(value, memoryview) else len(value)
        if size > self._max_payload:
            raise PayloadTooLarge(size, self._max_payload, what)
        return bytes(value)


def error_text(error: str | BaseException | None) -> str:
    if isinstance(error, BaseException):
        text = str(error)
        return clean_error(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    if not isinstance(error, str):
        raise TypeError(f"error={error!r} is a {type(error).__name__}: pass text or an exception")
    return clean_error(error)


def _set_times(insertion: Insertion, job: NewJob) -> None:
    if job.run_at is not None:
        if job.delay is not None:
            raise ValueError(f"run_at={job.run_at!r} and delay={job.delay!r}: pass one of the two")
        insertion.run_at = to_instant(job.run_at, "run_at")
    elif job.delay is not None:
        insertion.delay = to_micros(job.delay, "delay")
    if isinstance(job.expires, datetime):
        insertion.expires_at = to_instant(job.expires, "expires")
    elif job.expires is not None:
        insertion.expires_in = to_micros(job.expires, "expires")


def _set_dedup(insertion: Insertion, job: NewJob) -> None:
    check_dedup(job.dedup, job.dedup_max_delay, job.dedup_for, job.dedup_scope)
    insertion.dedup_latest = job.dedup == "latest"
    insertion.dedup_global = job.dedup_scope == "global"
    if job.dedup_max_delay is not None:
        insertion.dedup_max_delay = to_micros(job.dedup_max_delay, "dedup_max_delay")
    if job.dedup_for is not None:
        insertion.dedup_for = to_micros(job.dedup_for, "dedup_for")


def _set_backoff(op: SettleOp, settlement: Settlement, policy: Policy) -> None:
    """Set error, attempts and the delay before the next run. Without a delay, the job becomes dead."""
    op.error = error_text(settlement.error)
    if settlement.max_attempts is not None:
        check_max_attempts(settlement.max_attempts, "max_attempts")
        op.max_attempts = settlement.max_attempts
    if settlement.delay is not None:
        op.delay = to_micros(settlement.delay, "delay")
        return
    error = settlement.error
    failure = error if isinstance(error, BaseException) else Exception(error)
    seconds = policy.retry.after(max(settlement.job.attempts, 1), failure, entropy.fraction())
    if seconds is None:
        op.transition = Transition.DEAD_LETTER
    else:
        op.delay = round(seconds * SECOND)
