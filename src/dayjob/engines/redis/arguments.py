"""The arguments of the scripts, as flat lists in the order that the headers of the scripts give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct as Layout

from dayjob.engines.base import ClaimRequest, DocumentWrite, Insertion, RetentionByQueue, SettleOp, Token
from dayjob.engines.redis import record
from dayjob.engines.redis.keys import Keys
from dayjob.model.lifecycle import Transition

Arguments = list[bytes | str | int]

_SETTLE_OP = Layout(">16sBBIq")
TRANSITION_CODES = {
    Transition.ACK: 1, Transition.NACK: 2, Transition.DEAD_LETTER: 3, Transition.RELEASE: 4,
    Transition.SNOOZE: 5, Transition.MARK_CANCELLED: 6,
}  # fmt: skip
_ERROR, _RESULT, _PROGRESS, _JOBS, _MAX_ATTEMPTS, _CHARGES = 1, 2, 4, 8, 16, 32
_EXPECTED, _VALUE = 1, 2


def ids(keys: Iterable[bytes]) -> bytes:
    return b"".join(keys)


def jobs(insertions: Sequence[Insertion], *, bounded: bool = False) -> Arguments:
    """See ``lua/shared/6_insert.lua``. ``bounded``: a full queue refuses them."""
    arguments: Arguments = [ids([job.key for job in insertions])]
    for job in insertions:
        most = job.max_pending if bounded else None
        numbers = record.numbers(job, most is not None)
        arguments += (job.queue, numbers, record.dedup(job), *record.facts(job))
        if job.limits or job.fair:
            arguments.append(record.flow(job))
        if most is not None:
            arguments.append(most)
        if job.debounced:
            arguments.append(record.debounce(job))
        if job.kv:
            for pair in job.kv.items():
                arguments += pair
    return arguments


class PlainInsert:
    """The packed call of ``insert`` for one plain job, which is most of them.

    A plain job is pending at once and has a small payload, and none of the options that ``jobs`` adds
    arguments for. Only the parts that differ between calls are packed for each.
    """

    def __init__(self, keys: Keys, digest: bytes, replies_kept: int) -> None:
        fixed = (b"EVALSHA", digest, b"%d" % (len(keys.fixed) + 1), *keys.fixed)
        channels = b"".join(map(_bulk, (keys.changes, keys.ends)))
        self._keys = keys
        self._template = b"".join(
            (
                b"*%d\r\n" % (len(fixed) + 14),
                *[_bulk(part).replace(b"%", b"%%") for part in fixed],
                b"$%d\r\n%b\r\n$0\r\n\r\n",
                channels.replace(b"%", b"%%"),
                b"$%d\r\n%b\r\n$1\r\n0\r\n$16\r\n%b\r\n",
                _bulk(b"%d" % replies_kept),
                b"$16\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$0\r\n\r\n$%d\r\n%b\r\n$0\r\n\r\n",
            )
        )

    def request(self, job: Insertion, token: Token) -> bytes:
        reply = self._keys.reply(token.client, token.slot)
        number = b"%d" % token.number
        queue = job.queue.encode()
        numbers = record.NUMBERS.pack(1, job.priority, job.max_attempts, 0, 0, record.NONE)
        facts = record.facts(job)[0]
        return self._template % (
            len(reply), reply, len(number), number, token.key, job.key, len(queue), queue, len(numbers),
            numbers, len(facts), facts,
        )  # fmt: skip


def is_plain(job: Insertion) -> bool:
    return (
        job.dedup_key is None
        and job.delay is None
        and job.run_at is None
        and not job.limits
        and job.fair is None
        and job.kv is None
        and job.max_pending is None
        and job.expires_in is None
        and job.expires_at is None
        and not job.reserve_id
        and len(job.payload) <= record.SMALL
    )


def _bulk(part: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(part), part)


def requests(claims: Sequence[ClaimRequest], client: bytes | None = None) -> Arguments:
    """See ``lua/shared/7_claim.lua``. Without a client no request becomes a waiting claim."""
    arguments: Arguments = [len(claims)]
    for claim in claims:
        waiting, name = claim.waiting, b""
        if client is not None and waiting is not None and not waiting.is_last:
            name = client + waiting.name
        arguments += (claim.limit, claim.worker or b"", name, len(claim.queues))
        for pair in claim.queues:
            arguments += pair
    return arguments


def ops(settlements: Sequence[SettleOp]) -> Arguments:
    """See ``lua/settle.lua``."""
    numbers: list[bytes] = []
    given: Arguments = []
    for op in settlements:
        flags = 0
        if op.error is not None:
            flags |= _ERROR
            given.append(record.error(op))
        if op.result is not None:
            flags |= _RESULT
            given.append(record.result(op))
        if op.progress is not None:
            flags |= _PROGRESS
            given.append(record.progress(*op.progress))
        if op.max_attempts is not None:
            flags |= _MAX_ATTEMPTS
            given.append(op.max_attempts)
        if op.charges:
            flags |= _CHARGES
            given.append(record.units(op.charges))
        if op.insert:
            flags |= _JOBS
            given += jobs(op.insert)
        if op.kv:
            for pair in op.kv.items():
                given += pair
        numbers.append(
            _SETTLE_OP.pack(
                op.claim, TRANSITION_CODES[op.transition], flags, len(op.kv) if op.kv else 0,
                op.delay,
            )
            + record.retention(op.retention)
        )  # fmt: skip
    return [ids([op.key for op in settlements]), b"".join(numbers), *given]


def retention(retention: RetentionByQueue) -> Arguments:
    """See ``take_retention`` in ``lua/shared/5_rules.lua``."""
    arguments: Arguments = [record.retention(retention.default), len(retention.queues)]
    for queue, times in retention.queues.items():
        arguments += (queue, record.retention(times))
    return arguments


def documents(writes: Sequence[DocumentWrite]) -> Arguments:
    """See ``lua/compare_and_set.lua``."""
    arguments: Arguments = [len(writes)]
    for write in writes:
        given = 0 if write.expected is None else _EXPECTED
        given |= 0 if write.value is None else _VALUE
        arguments += (write.kind, write.name, given)
        arguments += [value for value in (write.expected, write.value) if value is not None]
    return arguments
