"""Opening a database: ownership, the layout's version, and the active jobs, loaded by one scan."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

from dayjob.engines import record as records
from dayjob.engines import verbs
from dayjob.engines.base import Document
from dayjob.engines.limits import BucketState, Place
from dayjob.engines.record import Corrupt, Record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.archive import Archive
from dayjob.engines.slatedb.database import Source
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.engines.slatedb.store import SlateStore
from dayjob.engines.slatedb.values import Claimed, Owner
from dayjob.engines.slatedb.write_batch import WriteBatch
from dayjob.errors import ConfigError, EngineUnavailable
from dayjob.model.durations import SECOND
from dayjob.model.job import JobState, QueueStats
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.process import Process, is_gone, this_process

_log = logging.getLogger("dayjob.engines.slatedb")

BEATS_MISSED = 3
"""An owner on another host counts as gone after this many missed heartbeats."""

_MIGRATED = 1000
"""The number of jobs in one commit of a migration."""


# Ownership.


async def check_layout(source: Source) -> int | None:
    """Return the layout's version, or None for a new database. Refuse a newer layout and other databases."""
    value, url = await source.get(keys.LAYOUT_KEY), source.settings.url
    if value is None:
        if await source.first(b"") is not None:
            raise ConfigError(f"{url}: this database is not dayjob's: name another folder or prefix")
        return None
    found = values.layout(value)
    if not isinstance(found, int):
        raise ConfigError(f"{url}: the layout's version can't be decoded: restore the database from a copy")
    _refuse_newer(source.settings, found)
    return found


def _refuse_newer(settings: SlateSettings, layout: int) -> None:
    if layout > keys.VERSION:
        raise ConfigError(
            f"{settings.url}: layout {layout} is from a newer dayjob, this one supports {keys.VERSION}: "
            "upgrade dayjob"
        )


async def read_owner(source: Source) -> Owner | None:
    """Return the owner. One that can't be decoded can only be taken over."""
    value = await source.get(keys.OWNER)
    try:
        return None if value is None else values.decode(Owner, value)
    except Corrupt as error:
        if source.settings.take_over:
            return None
        raise ConfigError(
            f"{source.settings.url}: the owner can't be decoded ({error}): make sure that no other process "
            "uses the database, and open it with ?takeover=1"
        ) from None


def is_alive(owner: Owner, here: Process) -> bool:
    """Return whether another process counts as the owner."""
    if owner.closed or owner.process == here:
        return False
    if owner.process.host == here.host:
        return not is_gone(owner.process.pid, owner.process.started)
    return SYSTEM.now() - owner.beat_us < BEATS_MISSED * owner.interval_us


def refuse_live_owner(settings: SlateSettings, owner: Owner | None) -> None:
    """Raise if another process is alive and owns the database, unless it is taken over."""
    if owner is not None and not settings.take_over and is_alive(owner, this_process()):
        seen = (SYSTEM.now() - owner.beat_us) / SECOND
        raise EngineUnavailable(
            f"{settings.url}: process {owner.process.pid} has it open (last seen {seen:.0f} s ago), and only "
            "one process can: enqueue there, stop it, or take over with ?takeover=1 (dayjob worker "
            "--take-over)"
        )


async def check_owner(settings: SlateSettings) -> Owner | None:
    """Return the last owner. Raise while another one is alive, unless it is taken over.

    It uses a reader, since opening a writer would fence that owner.
    """
    owner, written_ms = await _logged_owner(settings) or await _stored_owner(settings)
    refuse_live_owner(settings, owner)
    await _wait_for_clock(settings, written_ms)
    return owner


async def _logged_owner(settings: SlateSettings) -> tuple[Owner, int] | None:
    """Return the owner and the time of its last commit to a bucket, from the last object of the log.

    A reader would replay the whole log, as the writer does afterwards: some requests for each object.
    Return None if the log is empty, or not written by this version of dayjob.
    """
    if settings.local:
        return None
    rows = [row for row in await settings.last_log_rows() if row.key == keys.OWNER]
    last = max(rows, key=lambda row: row.seq, default=None)
    if last is None or last.value is None or last.create_ts is None:
        return None
    try:
        owner = values.decode(Owner, last.value)
    except Corrupt:
        return None
    _refuse_newer(settings, owner.layout)
    return (owner, last.create_ts) if owner.layout else None


async def _stored_owner(settings: SlateSettings) -> tuple[Owner | None, int]:
    """Return the owner and the time at which it was written, by a reader."""
    reader = await settings.open_reader()
    if reader is None:
        return None, 0
    source = Source(settings, reader)
    try:
        await check_layout(source)
        return await read_owner(source), await source.written_ms(keys.OWNER) or 0
    finally:
        await source.close()


async def _wait_for_clock(settings: SlateSettings, written_ms: int) -> None:
    """Wait until this machine's clock has reached the last write. Raise if that takes too long.

    SlateDB refuses a write at an earlier time, because its garbage collector depends on the order of times.
    """
    ahead = written_ms / 1000 - SYSTEM.now() / SECOND
    if ahead > settings.timeout:
        raise settings.clock_behind(f"its last write is {ahead:,.0f} s ahead of this machine's clock")
    await SYSTEM.wait(asyncio.Event(), ahead)


def next_owner(owner: Owner | None, settings: SlateSettings) -> Owner:
    """Return this process as the owner. If it was the last owner, it keeps its session and its claims."""
    here = this_process()
    session = 1 if owner is None else owner.session + (owner.process != here)
    interval = int(settings.beat * SECOND)
    return Owner(session, here, SYSTEM.now(), interval, tried_store=settings.store_id, layout=keys.VERSION)


# Older layouts.


async def migrate(write_batch: WriteBatch, version: int | None) -> None:
    """Write the index of dead jobs, which version 1 lacks, in several commits before the new version."""
    if version != 1:
        return
    async for rows in write_batch.source.scan(keys.DEAD):  # A migration was cut off. Its rows may be stale.
        for stored, _ in rows:
            write_batch.delete(stored)
        await write_batch.scannable()
    archive, after = Archive(write_batch), None
    while dead := await archive.find_in(JobState.DEAD, lambda _: True, after, _MIGRATED):
        for found in dead:
            archive.index(found.record)
        after = dead[-1].record.key
    await write_batch.scannable()


# Active jobs.


async def load(write_batch: WriteBatch, session: int) -> SlateStore:
    """Load the store. Jobs that can't be decoded are quarantined."""
    store = SlateStore(write_batch, session)
    await load_queues(write_batch)
    unreadable = await _load_jobs(store)
    await _load_changes(store, unreadable)
    await _load_claims(store)
    await store.archive.load()
    async for kind, document in stored_documents(write_batch.source, keys.DOCUMENT):
        store.load_document(kind, document)
    async for stored, value in write_batch.source.rows(keys.RESERVATION):
        until, key = keys.moment_of(stored)
        store.active.reserve(key, until, value or None)
    _fill_heaps(store)
    await _load_limits(store)
    store.newest = max(store.newest, store.archive.newest)
    store.orphans = [
        (key, store.active.jobs[key].claim)
        for key, other in store.claims.sessions.items()
        if other != session
    ]
    _recount(store)
    await store.payloads.need(list(unreadable))
    verbs.quarantine(store, SYSTEM.now(), unreadable.values())
    return store


async def load_queues(write_batch: WriteBatch) -> None:
    async for stored, value in write_batch.source.rows(keys.QUEUE):
        name = keys.name_of(stored)
        try:
            found = values.decode(values.Queue, value)
        except Corrupt as error:
            _log.error("the counters of queue %r are reset: %s", name, error)
            write_batch.touch(name)
            continue
        write_batch.stats[name] = QueueStats(*found.stats)
        if found.paused:
            write_batch.paused.add(name)


async def stored_documents(source: Source, prefix: bytes) -> AsyncIterator[tuple[str, Document]]:
    """Yield kinds and documents under the prefix, in key order, without those that can't be decoded."""
    async for stored, value in source.rows(prefix):
        kind, name = keys.document_parts(stored)
        try:
            found = values.decode(values.StoredDocument, value)
        except Corrupt as error:
            _log.error("the document %r of kind %r is ignored: %s", name, kind, error)
            continue
        yield kind, Document(name, found.value, found.written_us)


Unreadable = dict[bytes, tuple[Record, str]]


async def _load_jobs(store: SlateStore) -> Unreadable:
    unreadable: Unreadable = {}
    names: dict[str, str] = {}
    priorities: dict[int, int] = {}
    add, new_record, job_head, id_of = store.active.add, values.new_record, values.job_head, keys.id_of
    async for rows in store.write_batch.source.scan(keys.JOB, once=True):
        for stored, value in rows:
            key = id_of(stored)
            try:
                record = new_record(key, job_head(value))
            except Corrupt as error:
                record = new_record(key, values.UNREADABLE_HEAD)
                unreadable[key] = (record, str(error))
            record.queue = names.setdefault(record.queue, record.queue)
            record.priority = priorities.setdefault(record.priority, record.priority)
            add(record)
        store.newest = max(store.newest, id_of(rows[-1][0]))
    return unreadable


async def _load_changes(store: SlateStore, unreadable: Unreadable) -> None:
    async for rows in store.write_batch.source.scan(keys.STATE, once=True):
        for stored, value in rows:
            key = keys.id_of(stored)
            record = store.active.jobs.get(key)
            if record is None:
                store.write_batch.delete(stored)
                continue
            store.changed.add(key)
            try:
                change = values.decode(values.Changed, value)
            except Corrupt as error:
                unreadable[key] = (record, str(error))
                continue
            values.apply(record, change)
            if record.state is JobState.RUNNING:
                store.claims.sessions[key] = change.session


async def _load_claims(store: SlateStore) -> None:
    """Apply stored claims again to jobs that have not changed since."""
    claims = store.claims
    async for stored, value in store.write_batch.source.rows(keys.CLAIM):
        try:
            claim = values.decode(Claimed, value)
        except Corrupt as error:
            _log.error("a claim can't be decoded, so its jobs are pending again: %s", error)
            claim = Claimed(0, 0, None, [])
        running: set[bytes] = set()
        for key, epoch, lease in claim.entries:
            store.newest = max(store.newest, key)
            record = store.active.jobs.get(key)
            if record is None:
                continue
            if record.state is JobState.PENDING and record.epoch < epoch:
                records.claim(record, claim.now, lease, claim.worker, claim.key)
                claims.sessions[key] = claim.session
            if records.is_current(record, claim.key):
                running.add(key)
        number = claims.add(claim, running, keys.claim_number(stored))
        if not running:
            claims.remove(number)
            store.write_batch.delete(stored)


async def _load_limits(store: SlateStore) -> None:
    """Read the rates and the turns, and count the units of running jobs."""
    source, buckets = store.write_batch.source, dict[str, BucketState]()
    async for stored, value in source.rows(keys.BUCKET):
        name = keys.name_of(stored)
        store.stored_buckets.add(name)
        with suppress(Corrupt):  # It has no arrival time then.
            found = values.decode(values.Bucket, value)
            buckets[name] = BucketState(0, found.tat, found.due)
    async for stored, value in source.rows(keys.TURN):
        with suppress(Corrupt):
            store.turns[keys.turn_parts(stored)] = values.decode(values.Turn, value).turn
    for record in store.active.jobs.values():
        if record.limits and record.state is JobState.RUNNING:
            for name, units in record.limits:
                buckets.setdefault(name, BucketState()).running += units
    store.load_buckets(buckets)


def _fill_heaps(store: SlateStore) -> None:
    active = store.active
    pending: dict[str, list[Place]] = {}
    for record in active.jobs.values():
        active.hold(record)
        if record.state is JobState.PENDING and (record.expires_us is None or record.attempts):
            pending.setdefault(record.queue, []).append(record.order)
        else:
            active.enter(record)
    for queue, entries in pending.items():
        active.pending_of(queue).fill(entries)


def _recount(store: SlateStore) -> None:
    """Count the active jobs again. This repairs counters that were wrong."""
    batch = store.write_batch
    counted = Counter((record.queue, record.state._value_) for record in store.active.jobs.values())
    for name in {*batch.stats, *(queue for queue, _ in counted)}:
        now = [counted[name, state] for state in ("pending", "scheduled", "running", "limited")]
        found = batch.stats.get(name)
        if found is None or [found.pending, found.scheduled, found.running, found.limited] != now:
            found = batch.touch(name)
            found.pending, found.scheduled, found.running, found.limited = now
