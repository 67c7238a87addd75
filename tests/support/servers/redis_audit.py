"""The check that every entry of a namespace belongs to a job or is permanent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from struct import Struct as Layout
from typing import Any

from dayjob import Job, JobState
from dayjob.engines.redis.keys import FIXED, PERMANENT, Keys
from dayjob.engines.redis.record import SMALL, STATE_CODES, TIME, full_job, place
from dayjob.model.job import WAITING
from tests.support.servers.redis import client, prefix_of, url_of

LONGEST = 4_200_000
"""Milliseconds for which a reply is kept at most: the longest timeout, and ten minutes."""

DAMAGED: set[bytes] = set()
"""Jobs with damaged records: their old entries may stay in ``dead_index`` until ``find_dead`` reads them."""


def audit(directory: Path) -> None:
    """Check the namespace that belongs to the directory, then remove it."""
    with client(url_of(directory)) as connection:
        try:
            check(connection, prefix_of(directory))
        finally:
            for key in _keys(connection, prefix_of(directory)):
                connection.unlink(key)


def check(connection: Any, prefix: str) -> None:
    """Check that each entry belongs to a job, and that each job is in the indexes of its state."""
    keys = Keys(prefix)
    known = {*FIXED, *PERMANENT}
    for key in _keys(connection, prefix):
        name = key.decode(errors="replace").partition("}:")[2]
        if name.startswith("reply:"):
            assert 0 < connection.pttl(key) <= LONGEST, f"{name} does not expire"
        elif name.startswith("handoffs:"):
            assert connection.pttl(key) in (-2, *range(2001)), "a hand-off that is not received expires"
        else:
            assert name in known, f"{name} is not in the layout"
    payloads, results = connection.hgetall(keys.payloads), connection.hgetall(keys.results)
    jobs = {
        id: full_job(id, blob, payloads.get(id, b""), results.get(id))
        for id, blob in connection.hgetall(keys.jobs).items()
    }
    assert payloads.keys() - DAMAGED <= {id for id, job in jobs.items() if job.payload}
    assert {id for id, job in jobs.items() if len(job.payload) > SMALL} <= payloads.keys()
    assert results.keys() - DAMAGED == {id for id, job in jobs.items() if job.result is not None} - DAMAGED
    incomplete = {id for id, job in jobs.items() if "its payload has" in (job.last_error or "")}
    assert incomplete <= DAMAGED, f"{incomplete}: the payload is missing"
    members = {
        name: set(connection.zrange(keys.named(name), 0, -1)) for name in (*FIXED[1:8], "dead_index", "lines")
    }
    expected_members = _expected(jobs)
    old = members["dead_index"] - expected_members["dead_index"]
    members["dead_index"] -= {member for member in old if member[-16:] in DAMAGED}
    for name, expected in expected_members.items():
        assert members[name] == expected, f"{name}: {members[name] ^ expected}"
    assert all(id in jobs and jobs[id].state.finished for id in members["removals"])
    requested = {id for id, job in jobs.items() if job.state is JobState.RUNNING and job.cancel_requested}
    assert set(connection.smembers(keys.cancel_requests)) == requested
    for field, id in connection.hgetall(keys.dedup).items():
        if field.startswith(b"\0\0"):
            assert connection.zscore(keys.reserved_ids, bytes(16) + field[2:]) == int.from_bytes(id[:8])
            continue
        queue, _, key = field.partition(b"\0")
        holder = jobs.get(id)
        assert holder is not None, f"the dedup key {key!r} is held by a removed job"
        assert (holder.dedup_key or "").encode() == key
        assert queue in (holder.queue.encode(), b"")
        assert not holder.state.finished
    counts = Counter((STATE_CODES[job.state], job.queue) for job in jobs.values())
    for field, count in connection.hgetall(keys.counts).items():
        state, queue = int(field[:1]), field[1:].decode()
        assert int(count) == counts[state, queue] or state == STATE_CODES[JobState.DONE]
    documents = [member.split(b"\0", 2) for member in connection.zrange(keys.documents, 0, -1)]
    assert all(len(document) == 3 and len(document[2]) >= 8 for document in documents)
    assert len({(kind, name) for kind, name, _ in documents}) == len(documents), "a document has two members"
    assert stale_waiting_claims(connection, keys) == []
    for claim in connection.zrange(keys.handoffs, 0, -1):
        assert len(claim) == 32, f"{claim!r} is no claim"
    _check_buckets(connection, keys, jobs)
    queues = {name.decode() for name in connection.smembers(keys.queues)}
    assert {job.queue for job in jobs.values()} <= queues


def _check_buckets(connection: Any, keys: Keys, jobs: dict[bytes, Job]) -> None:
    """Check that buckets have the units of running jobs, and vanish without them."""
    running = Counter[str]()
    for job in jobs.values():
        if job.state is JobState.RUNNING:
            running.update(dict(job.limits))
    buckets = {
        name.decode(): Layout(">QQQ").unpack(value)
        for name, value in connection.hgetall(keys.buckets).items()
    }
    assert {name: units for name, (units, _, _) in buckets.items() if units} == running
    dues = {name.decode(): due for name, due in connection.zrange(keys.bucket_dues, 0, -1, withscores=True)}
    assert {name: due for name, (_, _, due) in buckets.items() if due} == dues
    idle = {name.decode(): at for name, at in connection.zrange(keys.idle_buckets, 0, -1, withscores=True)}
    assert {name: at for name, (units, at, due) in buckets.items() if not (units or due)} == idle
    turns = {field for field in connection.hkeys(keys.turns) if b"\0" in field}
    tenants = {
        (member.partition(b"\0")[0], member.partition(b"\0")[2][8:])
        for member in connection.zrange(keys.tenants, 0, -1)
    }
    assert turns == {b"\0".join(pair) for pair in tenants}


def stale_waiting_claims(connection: Any, keys: Keys) -> list[bytes]:
    """Return the waiting claims whose client is not subscribed."""
    found: list[bytes] = []
    for waiting in connection.zrange(keys.waiting_claims, 0, -1):
        client = waiting[waiting.index(b"\0") + 9 :][:16]
        [(_, subscribers)] = connection.pubsub_numsub(keys.handoffs_to(client))
        if not subscribers:
            found.append(waiting)
    return found


def _expected(jobs: dict[bytes, Job]) -> dict[str, set[bytes]]:
    """Return the members of the sorted sets by the jobs' states; a record does not have ``removals``."""
    names = ({*FIXED[1:8]} - {"removals"}) | {"dead_index", "lines"}
    expected: dict[str, set[bytes]] = {name: set() for name in names}
    for id, job in jobs.items():
        queue = job.queue.encode()
        expected["ids"].add(id + queue)
        if job.state is JobState.PENDING:
            expected["pending"].add(queue + b"\0" + place(job))
        elif job.state is JobState.LIMITED:
            expected["lines"].add(b"\0".join([(job.limited_by or "").encode(), queue, place(job)]))
        elif job.state is JobState.SCHEDULED:
            expected["due"].add(id)
        elif job.state is JobState.RUNNING:
            expected["leases"].add(id)
        else:
            expected["finished"].add(b"%d%b\0%b" % (STATE_CODES[job.state], queue, id))
        if job.state is JobState.DEAD:
            member = b"\0" + TIME.pack(job.finished_us or 0) + id
            expected["dead_index"] |= {member, queue + member}
        if job.state in WAITING and job.expires_us is not None and job.attempts == 0:
            expected["expiries"].add(id)
    return expected


def _keys(connection: Any, prefix: str) -> Iterator[bytes]:
    yield from connection.scan_iter(match=f"{{{prefix}}}:*", count=1000)
