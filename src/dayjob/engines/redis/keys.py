"""The keys of one namespace: what each holds, and who removes it.

All of them carry the same hash tag, ``{dayjob}`` or the URL's ``?prefix=``, and so share one slot of a Redis
Cluster. Their number does not depend on how many queues or jobs there are, so every script names all the keys
that it may touch. Ids are 16 bytes. A queue's name holds no NUL, so ``queue NUL`` begins no other name's
entries. Where a sorted set's scores are all 0 its order is that of the members' bytes, which is exact.

=============  ======  ==============================================  ===================================
key            type    holds                                           removed
=============  ======  ==============================================  ===================================
``jobs``       hash    id → record (``record.py``)                     with the job
``ids``        zset 0  id queue, of every job: listings in id order    with the job
``pending``    zset 0  queue NUL priority id (4 bytes big endian, 16)  when the job is no longer pending
``due``        zset    id by due time, of scheduled jobs               when it is no longer scheduled
``expiries``   zset    id by expiry, of waiting jobs that never ran    when it runs or ends
``leases``     zset    id by end of lease, of running jobs             when the claim ends
``removals``   zset    id by time of removal, of kept jobs             with the job, or by a requeue
``finished``   zset 0  state queue NUL id, of kept finished jobs       with the job, or by a requeue
``flagged``    set     ids of running jobs that are asked to stop      when the claim ends
``dedup``      hash    queue NUL key → id of the holder                when the holder lets go
``kv``         hash    the user's own values                           by the user
``counts``     hash    state queue → how many                          never: one field per queue and state
``queues``     set     every queue ever used                           never
``paused``     set     queues that hand out nothing                    by resume
``notes``      zset 0  kind NUL name NUL time value (``notes.py``)     by whoever wrote the note
``deaths``     zset 0  queue NUL time id; NUL time id: of dead jobs    with the job, or by a requeue
``seats``      zset 0  queue NUL time client seat lease worker         by a job for it, or its client's next
                       (8, 16, 16, 8 bytes): claims that wait          look, or when the client is gone
``handed``     zset    id epoch by the time to be confirmed by         by the client that it was sent to, or
                                                                       in seconds
``layout``     string  the version of all this                         never
``answer:…``   string  token and answer of the last call on one lane   by the next call, or in ten minutes
=============  ======  ==============================================  ===================================

Two channels tell of changes: ``news`` (queues that may have work, due times, cancels, kinds of notes) and
``ends`` (ids of jobs that finished). On ``seats:client`` a client gets the jobs that were claimed
for its seats (``seats.py``). Redis removes an empty key by itself, so an empty namespace is
``layout``, ``counts`` and ``queues``.

A dead job is in ``deaths`` twice: by the time of its failure (8 bytes, big endian) among those of its queue,
and among all, for which the empty name stands. Who lists them removes what a damaged record left there.

Layout 2 added ``notes`` and ``deaths`` to layout 1 and left the rest as it was. Who knows
nothing of ``seats`` may share a namespace with those who do.
"""

from __future__ import annotations

LAYOUT = 2
"""The version that this code reads and writes."""

FIXED = (
    "jobs", "ids", "pending", "due", "expiries", "leases", "removals", "finished", "flagged", "dedup", "kv",
    "counts", "queues", "paused", "notes", "deaths", "seats", "handed",
)  # fmt: skip
"""The keys that every script gets, in this order; ``lua/shared/1_keys.lua`` gives them their names."""

PERMANENT = frozenset({"counts", "queues", "layout"})
"""What stays when there are no jobs, no values, no paused queues and no notes."""


class Keys:
    """The names of one namespace's keys and channels."""

    def __init__(self, prefix: str) -> None:
        self._tag = f"{{{prefix}}}:".encode()
        self.fixed = tuple(self.named(name) for name in FIXED)
        (
            self.jobs, self.ids, self.pending, self.due, self.expiries, self.leases, self.removals,
            self.finished, self.flagged, self.dedup, self.kv, self.counts, self.queues, self.paused,
            self.documents, self.deaths, self.seats, self.handed,
        ) = self.fixed  # fmt: skip
        self.layout = self.named("layout")
        self.news = self.named("news")
        self.ends = self.named("ends")

    def named(self, name: str) -> bytes:
        return self._tag + name.encode()

    def hand_overs(self, client: bytes) -> bytes:
        """The channel on which a client gets the jobs that were claimed for its seats."""
        return self.seats + b":" + client

    def answer(self, client: str, lane: int) -> bytes:
        """Where the answers of a client's lane are kept; a lane has one call under way at a time."""
        return self.named(f"answer:{client}:{lane}")
