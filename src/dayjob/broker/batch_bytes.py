"""The weight of jobs and settlements in a batch: their number, and the bytes that travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dayjob.broker.batcher import Weight
from dayjob.engines.base import Insertion, SettleOp
from dayjob.model.settlement import Settlement

_SIZED = (bytes, bytearray, str)


def insertions_weight(jobs: Sequence[Insertion]) -> Weight:
    size = 0
    for job in jobs:
        size += len(job.payload)
        if job.headers or job.kv:
            size += _bytes(job.headers) + _bytes(job.kv)
    return len(jobs), size


def ops_weight(ops: Sequence[SettleOp]) -> Weight:
    jobs, size = len(ops), 0
    for op in ops:
        if op.insert:
            more_jobs, more_bytes = insertions_weight(op.insert)
            jobs += more_jobs
            size += more_bytes
        if op.result is not None:
            size += len(op.result)
        elif op.error is not None:
            size += len(op.error)
        if op.kv:
            size += _bytes(op.kv)
    return jobs, size


def settlement_weight(settlement: Settlement) -> Weight:
    """Return the weight of a settlement that is not validated yet: a value of a wrong type counts 0."""
    jobs, size = 1, 0
    result = settlement.result
    if result is not None:
        size = len(result) if type(result) is bytes else _size(result)
    elif settlement.error is not None:
        size = _size(settlement.error)
    if settlement.kv:
        size += _bytes(settlement.kv)
    if settlement.enqueue:
        for job in settlement.enqueue:
            jobs += 1
            size += _size(getattr(job, "payload", b""))
            size += _bytes(getattr(job, "headers", None)) + _bytes(getattr(job, "kv", None))
    return jobs, size


def _bytes(mapping: object) -> int:
    if not isinstance(mapping, Mapping):
        return 0
    return sum(_size(key) + _size(value) for key, value in mapping.items())


def _size(value: object) -> int:
    if isinstance(value, memoryview):
        return value.nbytes
    return len(value) if isinstance(value, _SIZED) else 0
