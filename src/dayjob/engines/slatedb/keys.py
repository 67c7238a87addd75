"""The key layout: every key that the engine writes, and its value.

A key is a prefix byte, a kind (one byte), then its fields. A field of variable length is the last one, or
ends with a NUL, which it can't contain. So no two keys are equal, for any texts. The field that a scan
orders by comes first.

| kind | fields | value (see ``values``) | use |
| --- | --- | --- | --- |
| ``j`` | id | the job as it was enqueued | a job that waits or runs; opening scans these |
| ``s`` | id | the state of the job | only if it differs from the state at enqueue or claim |
| ``c`` | number | key, worker, time, ids and epochs | one for all jobs of a claim |
| ``f`` | state, id | ``j`` and ``s`` in one | a finished job that is kept; opening does not scan these |
| ``r`` | time, id | state, queue, finish time | the end of a finished job's retention |
| ``d`` | queue or nothing, NUL, time, id | the queue's name | the finish time of a dead job: twice |
| ``q`` | queue's name | counters, and whether it is paused | one for each queue ever used |
| ``k`` | the user's key | the user's value | the kv space |
| ``i`` | time, id | nothing | the end of the reservation of an id; opening scans these |
| ``i`` | time, hash of scope and key | the id of its job | the end of the window of a dedup key |
| ``n`` | kind, NUL, name | the document and its write time | the broker's records; opening scans these |
| ``b`` | bucket | arrival and due time of its rate | a limit's key with a rate, until it is idle |
| ``t`` | queue, NUL, tenant or nothing | its turn | a fair queue, and each of its tenants |
| ``o`` | – | the owner and its last heartbeat | the process that may write |

``LAYOUT_KEY`` never changes. Its value is the version of the layout. Version 2 added the documents, the
index of dead jobs (``d``), and the finish time in ``r``. Version 3 added the keys of claims, and the
reservations (``i``). Version 4 added limits and turns (``b``, ``t``), which opening scans. Opening version 1
indexes the dead jobs. Opening an older version writes the new one in the commit that makes the process the
owner.

A dead job has two ``d`` rows: one among the dead jobs of its queue, one among all dead jobs.

A claim's entry ``(id, epoch)`` is valid if the job's stored epoch is smaller. The job's stored state is then
the one before the claim, and opening applies the claim again. A job that was changed while it ran, or was
settled and is still there, has the claim's epoch itself, and its state is in ``s``. So a claim needs no write
per job, and an ack only the delete.

The engine's speed depends on the number of writes (tens of microseconds each):

| transition | writes |
| --- | --- |
| enqueue | 1; 1 more if the caller gave the id, and 1 when its reservation ends |
| claim | 1 for all jobs of the call |
| no room, wake-up | 1 |
| ack, not kept | 1; 1 more if the job was retried or renewed before; 1 when a claim's last job is settled |
| ack, kept | 2; 1 more if the retention ends |
| dead-letter | 4; 1 more if the retention ends |
| retry, release, snooze, renewal, promotion, progress | 1 |
| document | 1 |

Counters add one write for each queue that a commit touches, however many jobs it moved. On a bucket, each
commit writes the owner, so that opening finds it in the last log object.
"""

from __future__ import annotations

from dayjob.model.job import JobState

VERSION = 4
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
RESERVATION = _PREFIX + b"i"
DOCUMENT = _PREFIX + b"n"
OWNER = _PREFIX + b"o"
BUCKET = _PREFIX + b"b"
TURN = _PREFIX + b"t"

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
    """Return the sort key. Times before 1970 count as 1970, so that a wrong clock keeps the order."""
    return max(time, 0).to_bytes(8, "big") + key


def moment_of(stored: bytes) -> tuple[int, bytes]:
    """Return the time and the job's id at the end of a key."""
    return int.from_bytes(stored[-24:-16], "big"), stored[-16:]


def removal(time: int, key: bytes) -> bytes:
    return REMOVAL + moment(time, key)


def reservation(time: int, key: bytes) -> bytes:
    return RESERVATION + moment(time, key)


def dead_prefix(queue: str | None) -> bytes:
    """Return the prefix of the index of the queue's dead jobs, or of all. No queue's name is empty."""
    return DEAD + (queue or "").encode() + b"\0"


def dead(queue: str, time: int, key: bytes) -> tuple[bytes, bytes]:
    """Return the keys of a dead job in both indexes."""
    ended = moment(time, key)
    return dead_prefix(None) + ended, dead_prefix(queue) + ended


def queue(name: str) -> bytes:
    return QUEUE + name.encode()


def name_of(stored: bytes) -> str:
    """Return the name of a queue or a bucket."""
    return stored[len(QUEUE) :].decode()


def kv(key: bytes) -> bytes:
    return KV + key


def documents_prefix(kind: str) -> bytes:
    return DOCUMENT + kind.encode() + b"\0"


def document(kind: str, name: str) -> bytes:
    return documents_prefix(kind) + name.encode()


def document_parts(stored: bytes) -> tuple[str, str]:
    kind, _, name = stored[len(DOCUMENT) :].partition(b"\0")
    return kind.decode(), name.decode()


def bucket(name: str) -> bytes:
    return BUCKET + name.encode()


def turn(queue: str, tenant: str | None) -> bytes:
    """A tenant's name may be empty, so that it begins with a byte of its own."""
    return TURN + queue.encode() + (b"\0" if tenant is None else b"\0=" + tenant.encode())


def turn_parts(stored: bytes) -> tuple[str, str | None]:
    queue, _, tenant = stored[len(TURN) :].partition(b"\0")
    return queue.decode(), tenant[1:].decode() if tenant else None


def id_of(stored: bytes) -> bytes:
    """Return the job's id at the end of a key."""
    return stored[-16:]
