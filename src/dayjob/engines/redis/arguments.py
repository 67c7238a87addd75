"""What the scripts get: jobs, requests and verdicts as flat lists, in the order that their heads name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct as Layout

from dayjob.engines.base import ClaimRequest, Insertion, Keeps, NoteWrite, Verdict
from dayjob.engines.redis import record
from dayjob.engines.redis.record import NONE
from dayjob.lifecycle import Event

Arguments = list[bytes | str | int]

_VERDICT = Layout(">IBBIqqqq")
_EVENTS = {
    Event.ACK: 1, Event.NACK: 2, Event.DEAD_LETTER: 3, Event.RELEASE: 4, Event.SNOOZE: 5,
    Event.MARK_CANCELLED: 6,
}  # fmt: skip
_ERROR, _RESULT, _PROGRESS, _JOBS = 1, 2, 4, 8
_EXPECTED, _VALUE = 1, 2


def ids(keys: Iterable[bytes]) -> bytes:
    return b"".join(keys)


def jobs(insertions: Sequence[Insertion]) -> Arguments:
    """See ``lua/shared/5_insertion.lua``."""
    arguments: Arguments = [ids([job.key for job in insertions])]
    for job in insertions:
        arguments += (job.queue, record.numbers(job), job.dedup_key or b"", record.facts(job))
        if job.kv:
            for pair in job.kv.items():
                arguments += pair
    return arguments


def requests(claims: Sequence[ClaimRequest], client: bytes | None = None) -> Arguments:
    """See ``lua/shared/6_claiming.lua``. Without a client nobody takes a seat."""
    arguments: Arguments = [len(claims)]
    for claim in claims:
        seat = b"" if client is None or claim.seat is None else client + claim.seat.name
        arguments += (claim.limit, claim.worker or b"", seat, len(claim.queues))
        for pair in claim.queues:
            arguments += pair
    return arguments


def verdicts(settlements: Sequence[Verdict]) -> Arguments:
    """See ``lua/settle.lua``."""
    numbers: list[bytes] = []
    given: Arguments = []
    for verdict in settlements:
        keep = verdict.keep
        flags = 0
        if verdict.error is not None:
            flags |= _ERROR
            given.append(verdict.error)
        if verdict.result is not None:
            flags |= _RESULT
            given.append(verdict.result)
        if verdict.progress is not None:
            flags |= _PROGRESS
            given.append(record.progress(*verdict.progress))
        if verdict.insert:
            flags |= _JOBS
            given += jobs(verdict.insert)
        if verdict.kv:
            for pair in verdict.kv.items():
                given += pair
        numbers.append(
            _VERDICT.pack(
                verdict.epoch, _EVENTS[verdict.event], flags, len(verdict.kv) if verdict.kv else 0,
                verdict.delay, NONE if keep.done is None else keep.done,
                NONE if keep.dead is None else keep.dead, NONE if keep.cancelled is None else keep.cancelled,
            )
        )  # fmt: skip
    return [ids([verdict.key for verdict in settlements]), b"".join(numbers), *given]


def keeps(keeps: Keeps) -> Arguments:
    """See ``take_keeps`` in ``lua/shared/4_rules.lua``."""
    arguments: Arguments = [record.keep(keeps.default), len(keeps.queues)]
    for queue, keep in keeps.queues.items():
        arguments += (queue, record.keep(keep))
    return arguments


def notes(writes: Sequence[NoteWrite]) -> Arguments:
    """See ``lua/write_notes.lua``."""
    arguments: Arguments = [len(writes)]
    for write in writes:
        given = 0 if write.expected is None else _EXPECTED
        given |= 0 if write.value is None else _VALUE
        arguments += (write.kind, write.name, given)
        arguments += [value for value in (write.expected, write.value) if value is not None]
    return arguments
