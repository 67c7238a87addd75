"""Whether all that a namespace holds belongs to a live job, or is declared permanent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dayjob import Job, JobState
from dayjob.engines.redis.keys import FIXED, PERMANENT, Keys
from dayjob.engines.redis.record import CODES, TIME, full_job
from tests.support.servers.redis import client, prefix_of, url_of

DAMAGED: set[bytes] = set()
"""Jobs whose records tests have damaged: of them old entries may stay in ``deaths`` until they are listed."""


def audit(directory: Path) -> None:
    """Check the namespace that belongs to the directory, then remove it."""
    with client(url_of(directory)) as connection:
        try:
            check(connection, prefix_of(directory))
        finally:
            for key in _keys(connection, prefix_of(directory)):
                connection.unlink(key)


def check(connection: Any, prefix: str) -> None:
    """Each entry of each key is there because of a job, and each job is wherever its state says."""
    keys = Keys(prefix)
    known = {*FIXED, *PERMANENT}
    for key in _keys(connection, prefix):
        name = key.decode().partition("}:")[2]
        if name.startswith("answer:"):
            assert 0 < connection.pttl(key) <= 600_000, f"{name} stays for ever"
        else:
            assert name in known, f"{name} is not in the layout"
    jobs = {id: full_job(id, blob) for id, blob in connection.hgetall(keys.jobs).items()}
    places = {name: set(connection.zrange(keys.named(name), 0, -1)) for name in (*FIXED[1:8], "deaths")}
    expected_places = _expected(jobs)
    left = {death for death in places["deaths"] - expected_places["deaths"] if death[-16:] in DAMAGED}
    places["deaths"] -= left
    for name, expected in expected_places.items():
        assert places[name] == expected, f"{name}: {places[name] ^ expected}"
    assert all(id in jobs and jobs[id].state.finished for id in places["removals"])
    flagged = {id for id, job in jobs.items() if job.state is JobState.RUNNING and job.cancel_requested}
    assert set(connection.smembers(keys.flagged)) == flagged
    for field, id in connection.hgetall(keys.dedup).items():
        queue, _, key = field.partition(b"\0")
        holder = jobs.get(id)
        assert holder is not None, f"the dedup key {key!r} is held by a job that is gone"
        assert (holder.queue.encode(), (holder.dedup_key or "").encode()) == (queue, key)
        assert not holder.state.finished
    counts = Counter((CODES[job.state], job.queue) for job in jobs.values())
    for field, count in connection.hgetall(keys.counts).items():
        state, queue = int(field[:1]), field[1:].decode()
        assert int(count) == counts[state, queue] or state == CODES[JobState.DONE]
    documents = [member.split(b"\0", 2) for member in connection.zrange(keys.documents, 0, -1)]
    assert all(len(note) == 3 and len(note[2]) >= 8 for note in documents)
    assert len({(kind, name) for kind, name, _ in documents}) == len(documents), "a note was written twice"
    assert nobodys_seats(connection, keys) == []
    for claim in connection.zrange(keys.handed, 0, -1):
        assert len(claim) == 20, f"{claim!r} is no claim"
    queues = {name.decode() for name in connection.smembers(keys.queues)}
    assert {job.queue for job in jobs.values()} <= queues


def nobodys_seats(connection: Any, keys: Keys) -> list[bytes]:
    """The seats whose process does not listen."""
    found: list[bytes] = []
    for waiting in connection.zrange(keys.seats, 0, -1):
        client = waiting[waiting.index(b"\0") + 9 :][:16]
        [(_, listeners)] = connection.pubsub_numsub(keys.hand_overs(client))
        if not listeners:
            found.append(waiting)
    return found


def _expected(jobs: dict[bytes, Job]) -> dict[str, set[bytes]]:
    """What the sorted sets hold, by the jobs' states; but ``removals``, which a record does not show."""
    names = ({*FIXED[1:8]} - {"removals"}) | {"deaths"}
    expected: dict[str, set[bytes]] = {name: set() for name in names}
    for id, job in jobs.items():
        queue = job.queue.encode()
        expected["ids"].add(id + queue)
        if job.state is JobState.PENDING:
            expected["pending"].add(queue + b"\0" + job.priority.to_bytes(4) + id)
        elif job.state is JobState.SCHEDULED:
            expected["due"].add(id)
        elif job.state is JobState.RUNNING:
            expected["leases"].add(id)
        else:
            expected["finished"].add(b"%d%b\0%b" % (CODES[job.state], queue, id))
        if job.state is JobState.DEAD:
            place = b"\0" + TIME.pack(job.finished_us or 0) + id
            expected["deaths"] |= {place, queue + place}
        waiting = job.state in (JobState.PENDING, JobState.SCHEDULED)
        if waiting and job.expires_us is not None and job.attempts == 0:
            expected["expiries"].add(id)
    return expected


def _keys(connection: Any, prefix: str) -> Iterator[bytes]:
    yield from connection.scan_iter(match=f"{{{prefix}}}:*", count=1000)
