"""The keys of one namespace: the content of each, and when its entries are removed.

All keys carry the same hash tag, ``{dayjob}`` or the URL's ``?prefix=``, and so share one slot of a Redis
Cluster. Their number does not depend on the number of queues or jobs, so every script declares all keys that
it may touch. Ids are 16 bytes. A queue name has no NUL, so ``queue NUL`` is a prefix of no other queue's
entries. Sorted sets whose scores are all 0 are ordered by the bytes of their members, which is exact.

===================  ======  ==============================================  ================================
key                  type    content                                         removed
===================  ======  ==============================================  ================================
``jobs``             hash    id → record (``record.py``): all that changes   with the job
``payloads``         hash    id → payload above 1 KiB, salt                  with the job
``results``          hash    id → result, salt, of jobs that have one        with the job
``ids``              zset 0  id queue, of every job: listings in id order    with the job
``pending``          zset 0  queue NUL place; the place is priority id (4    when the job is no longer pending
                             bytes big endian, 16), or with a turn priority
                             FF… turn id (4, 16, 8, 16)
``due``              zset    id by due time, of scheduled jobs               when it is no longer scheduled
``expiries``         zset    id by expiry, of waiting jobs that never ran    when it runs or ends
``leases``           zset    id by end of lease, of running jobs             when the claim ends
``removals``         zset    id by time of removal, of kept jobs             with the job, or by a requeue
``finished``         zset 0  state queue NUL id, of kept finished jobs       with the job, or by a requeue
``cancel_requests``  set     ids of running jobs with a cancel request       when the claim ends
``dedup``            hash    queue NUL key → id of the holder; NUL key if    when the holder releases the key;
                             the key is global; NUL NUL and one of these →   windows by ``sweep``
                             end and job of its window (8 bytes, 16)
``kv``               hash    the user's own values                           by the user
``counts``           hash    state queue → number of jobs                    never: a field per queue, state
``queues``           set     every queue ever used                           never
``paused``           set     paused queues                                   by resume
``documents``        zset 0  kind NUL name NUL time value                    by the writer of the document
                             (``queries.py``)
``dead_index``       zset 0  queue NUL time id; NUL time id: of dead jobs    with the job, or by a requeue
``waiting_claims``   zset 0  queue NUL time client name lease worker         by a hand-off, by the client's
                             (8, 16, 16, 8 bytes)                            next claim, or after its end
``reserved_ids``     zset    id by the end of its reservation, of ids that   by ``sweep``
                             callers gave; 16 NULs and a field of ``dedup``
                             by the end of its window
``handoffs``         zset    id claim by the deadline of the acknowledgment  by the acknowledgment, or after
                                                                             the deadline
``handoff_clients``  zset    client by the time of its first hand-off        by its acknowledgment or next
                             without an acknowledgment                       claim, or after ten minutes
``lines``            zset 0  bucket NUL queue NUL place, of limited jobs     when the job is no longer limited
``buckets``          hash    bucket → running units, arrival time of its     when idle; of a rate by ``sweep``
                             rate, due time or 0 (8 bytes each)
``bucket_dues``      zset    bucket by the time at which its lines are       when its lines wait for no time
                             woken
``idle_buckets``     zset    bucket by its arrival time, of buckets of       by its next claim, or ``sweep``
                             rates without running jobs and due time
``turns``            hash    queue → turn of a fair queue; queue NUL tenant  of tenants: when the turn of the
                             → next free turn                                queue has passed it
``tenants``          zset 0  queue NUL turn tenant (8 bytes), of tenants in  with the tenant's turn
                             ``turns``; the turn may be an earlier one
``handoffs:…``       list    messages of hand-offs to one client             by the client, or after two
                             (``waiting_claims.py``)                         seconds
``layout``           string  the version of this layout                      never
``reply:…``          string  number, step and reply of the last write of     by the next write, or ten minutes
                             one client and slot                             after the client's ``timeout``
===================  ======  ==============================================  ================================

Two channels announce changes: ``changes`` (queues with claimable jobs, due times, cancel requests, kinds of
documents) and ``ends`` (ids of jobs that finished). Every client of the server may read and publish messages,
so they have names and ids only, and no effect but a read. The channel ``handoffs:…`` of each client has no
messages: its subscription shows that the client is alive.

Redis removes an empty key by itself, so an empty namespace consists of ``layout``, ``counts`` and ``queues``,
and of ``turns`` and ``tenants`` if it has fair queues.

A dead job has two entries in ``dead_index``, each with the time of its failure (8 bytes, big endian): one
under its queue, and one under the empty name for all queues. ``find_dead`` removes entries that a damaged
record left.

Large payloads, and results, are apart from the records, so that a transition neither reads nor writes them.
Only a claim reads the payloads of its jobs.

Layout 2 added documents and the index of dead jobs. Layout 3 renamed keys (``RENAMED``). Layout 4 moved
large payloads, and results, to keys of their own, added the claim to the records, and added
``reserved_ids``. Layout 5 added limits and turns; a job without them is stored as before. Layout 6 added
salts to new records, payloads, results and errors; older ones stay as they are.
"""

from __future__ import annotations

from functools import lru_cache

LAYOUT = 6
"""The version that this code reads and writes."""

FIXED = (
    "jobs", "ids", "pending", "due", "expiries", "leases", "removals", "finished", "cancel_requests", "dedup",
    "kv", "counts", "queues", "paused", "documents", "dead_index", "waiting_claims", "handoffs",
    "payloads", "results", "handoff_clients", "reserved_ids", "lines", "buckets", "bucket_dues",
    "idle_buckets", "turns", "tenants",
)  # fmt: skip
"""The keys that every script gets, in this order; ``lua/shared/1_keys.lua`` names them."""

RENAMED = {
    "flagged": "cancel_requests", "notes": "documents", "deaths": "dead_index", "seats": "waiting_claims",
    "handed": "handoffs",
}  # fmt: skip
"""The keys that had another name before layout 3."""

PERMANENT = frozenset({"counts", "queues", "layout", "turns", "tenants"})
"""The keys that may remain without jobs, values, paused queues and documents."""


class Keys:
    """The names of one namespace's keys and channels."""

    def __init__(self, prefix: str) -> None:
        self._tag = f"{{{prefix}}}:".encode()
        self.fixed = tuple(self.named(name) for name in FIXED)
        (
            self.jobs, self.ids, self.pending, self.due, self.expiries, self.leases, self.removals,
            self.finished, self.cancel_requests, self.dedup, self.kv, self.counts, self.queues, self.paused,
            self.documents, self.dead_index, self.waiting_claims, self.handoffs, self.payloads, self.results,
            self.handoff_clients, self.reserved_ids, self.lines, self.buckets, self.bucket_dues,
            self.idle_buckets, self.turns, self.tenants,
        ) = self.fixed  # fmt: skip
        self.layout = self.named("layout")
        self.changes = self.named("changes")
        self.ends = self.named("ends")
        self.reply = lru_cache(maxsize=1000)(self._reply)

    def named(self, name: str) -> bytes:
        return self._tag + name.encode()

    def handoffs_to(self, client: bytes) -> bytes:
        """Return the list of the jobs that were claimed for a client, and the channel that shows it alive."""
        return self.handoffs + b":" + client

    def _reply(self, client: bytes, slot: int) -> bytes:
        """Return the key of the stored reply of a client's slot, which has one write under way at a time."""
        return self.named(f"reply:{client.hex()}:{slot}")
