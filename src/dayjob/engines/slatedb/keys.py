"""The key layout: every key that the engine writes, and what is behind it.

A key is a byte that all share, a kind (one byte), then its fields. A field of variable length is the last
one, or ends with a NUL that it can't hold, so no two keys can be mistaken for each other, whatever text
they hold. What a scan orders by comes first.

| kind | fields | value (see ``values``) | why |
| --- | --- | --- | --- |
| ``j`` | id | the job as it was enqueued | a job that waits or runs; opening scans these |
| ``s`` | id | what has changed since | only if it is no longer as it was enqueued or claimed |
| ``c`` | number | who claimed, when, and which ids and epochs | one for all jobs of a claim |
| ``f`` | state, id | both of the above in one | a finished job that is kept; not scanned by opening |
| ``r`` | time, id | state, queue, when it ended | when a finished job is to be removed |
| ``d`` | queue's name or nothing, NUL, time, id | the queue's name | when a dead job ended: twice |
| ``q`` | queue's name | the counters, and whether it is paused | one for each queue ever used |
| ``k`` | the user's key | the user's value | the kv space |
| ``n`` | kind, NUL, name | the note, and when it was written | dayjob's own; opening scans these |
| ``o`` | – | the owner and its last sign of life | who may write |

``LAYOUT_KEY`` stands outside: its place never changes, and it holds the version of the rest. Version 2 added
the notes, the index of the dead (``d``), and when it ended to a removal. Opening version 1 indexes the dead
jobs that are there, then writes the new number, in the commit that makes it the owner.

A dead job has two ``d``, for the latest of its queue's and for the latest of all.

A claim's entry ``(id, epoch)`` holds if the job's stored epoch is one less: then the job is as it was
before, and what the claim made of it is worked out again. A job that was changed while it ran, or that
was settled and is still there, has the claim's epoch itself, and is as its ``s`` says. So a claim needs no
write per job, and an ack none but the delete.

Writes of each transition, which is what the engine's speed comes down to (tens of microseconds each):

| transition | writes |
| --- | --- |
| enqueue | 1 |
| claim | 1 for all jobs of the call |
| ack, not kept | 1; 1 more if the job was retried or renewed before; 1 when a claim's last job is settled |
| ack, kept | 2, and 1 if it is to be removed some day |
| dead-letter | 4, and 1 if it is to be removed some day |
| retry, release, snooze, renewal, promotion, progress | 1 |
| note | 1 |

Counters add one write for each queue that a commit touches, however many jobs it moved.
"""

from __future__ import annotations

from dayjob.model.job import JobState

VERSION = 2
LAYOUT_KEY = b"\x00dayjob"

_PREFIX = b"\x01"

JOB = _PREFIX + b"j"
STATE = _PREFIX + b"s"
CLAIM = _PREFIX + b"c"
FINISHED = _PREFIX + b"f"
REMOVAL = _PREFIX + b"r"
DEAD = _PREFIX + b"d"
QUEUE = _PREFIX + b"q"
KV = _PREFIX + b"k"
NOTE = _PREFIX + b"n"
OWNER = _PREFIX + b"o"

FINISHED_STATES = (JobState.DONE, JobState.DEAD, JobState.CANCELLED)
_STATE_BYTES = {JobState.DONE: b"d", JobState.DEAD: b"x", JobState.CANCELLED: b"c"}
_FINISHED_OF = {state: FINISHED + byte for state, byte in _STATE_BYTES.items()}


def job(key: bytes) -> bytes:
    return JOB + key


def state(key: bytes) -> bytes:
    return STATE + key


def claim(number: int) -> bytes:
    return CLAIM + number.to_bytes(8, "big")


def claim_number(stored: bytes) -> int:
    return int.from_bytes(stored[len(CLAIM) :], "big")


def finished_prefix(state: JobState) -> bytes:
    return _FINISHED_OF[state]


def finished(state: JobState, key: bytes) -> bytes:
    return _FINISHED_OF[state] + key


def moment(time: int, key: bytes) -> bytes:
    """Times before 1970 are the first of all: a clock may be wrong, an order may not."""
    return max(time, 0).to_bytes(8, "big") + key


def moment_of(stored: bytes) -> tuple[int, bytes]:
    """The time and the job's id, with which a key ends that is ordered by them."""
    return int.from_bytes(stored[-24:-16], "big"), stored[-16:]


def removal(time: int, key: bytes) -> bytes:
    return REMOVAL + moment(time, key)


def dead_prefix(queue: str | None) -> bytes:
    """What the index of the queue's dead jobs begins with, or that of all; no queue's name is empty."""
    return DEAD + (queue or "").encode() + b"\0"


def dead(queue: str, time: int, key: bytes) -> tuple[bytes, bytes]:
    """The dead job in both indexes."""
    ended = moment(time, key)
    return dead_prefix(None) + ended, dead_prefix(queue) + ended


def queue(name: str) -> bytes:
    return QUEUE + name.encode()


def queue_name(stored: bytes) -> str:
    return stored[len(QUEUE) :].decode()


def kv(key: bytes) -> bytes:
    return KV + key


def documents(kind: str) -> bytes:
    """What the notes of the kind begin with."""
    return NOTE + kind.encode() + b"\0"


def note(kind: str, name: str) -> bytes:
    return documents(kind) + name.encode()


def note_parts(stored: bytes) -> tuple[str, str]:
    kind, _, name = stored[len(NOTE) :].partition(b"\0")
    return kind.decode(), name.decode()


def id_of(stored: bytes) -> bytes:
    """The job's id, with which the keys of jobs end."""
    return stored[-16:]
