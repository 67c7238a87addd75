"""Opening: who may write, which layout it is, and what waits or runs, rebuilt by one scan."""

from __future__ import annotations

import logging

from dayjob.engines import record as records
from dayjob.engines.record import Record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.database import Source
from dayjob.engines.slatedb.finished import Archive
from dayjob.engines.slatedb.ledger import Ledger
from dayjob.engines.slatedb.live import Place as Standing
from dayjob.engines.slatedb.place import Place
from dayjob.engines.slatedb.store import Store
from dayjob.engines.slatedb.values import Claimed, Corrupt, Owner
from dayjob.errors import ConfigError, EngineUnavailable
from dayjob.model.durations import SECOND
from dayjob.model.job import JobState, QueueStats
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.process import Process, is_gone, this_process

_log = logging.getLogger("dayjob.engines.slatedb")

BEATS_MISSED = 3
"""An owner on another host is taken to be gone after so many signs of life that did not come."""

_AT_ONCE = 1000
"""How many jobs a commit of a migration takes in."""


# Who may write.


async def check_layout(source: Source) -> int | None:
    """The layout's version, None of a new database; refuses what a newer dayjob, or something else, wrote."""
    value, url = await source.get(keys.LAYOUT_KEY), source.place.url
    if value is None:
        if await source.first(b"") is not None:
            raise ConfigError(f"{url}: this database is not dayjob's: name another folder or prefix")
        return None
    found = values.layout(value)
    if not isinstance(found, int):
        raise ConfigError(f"{url}: the layout's version can't be read: restore the database from a copy")
    if found > keys.VERSION:
        raise ConfigError(
            f"{url}: layout {found} is from a newer dayjob, this one knows {keys.VERSION}: upgrade dayjob"
        )
    return found


async def read_owner(source: Source) -> Owner | None:
    value = await source.get(keys.OWNER)
    try:
        return None if value is None else values.owner(value)
    except Corrupt as error:
        raise ConfigError(
            f"{source.place.url}: the owner can't be told ({error}): make sure that no other process uses "
            "the database, and open it with ?takeover=1"
        ) from None


def is_alive(owner: Owner, here: Process) -> bool:
    """Whether another process must be taken to be the owner still."""
    if owner.closed or owner.process == here:
        return False
    if owner.process.host == here.host:
        return not is_gone(owner.process.pid, owner.process.started)
    return SYSTEM.now() - owner.beat_us < BEATS_MISSED * owner.interval_us


async def may_open(place: Place) -> None:
    """Refuse while another owner is alive; told by a reader, since opening a writer would fence it."""
    reader = await place.open_reader()
    if reader is None:
        return
    source = Source(place, reader)
    try:
        await place.opening(check_layout(source))
        if place.take_over:
            return
        owner = await place.opening(read_owner(source))
    finally:
        await source.close()
    if owner is not None and is_alive(owner, this_process()):
        seen = (SYSTEM.now() - owner.beat_us) / SECOND
        raise EngineUnavailable(
            f"{place.url}: process {owner.process.pid} has it open (last seen {seen:.0f} s ago), and only "
            "one process can: stop that one, or take over with ?takeover=1 (dayjob worker --take-over)"
        )


def next_owner(owner: Owner | None, place: Place) -> Owner:
    """This process as the owner; it keeps its session, and with it its claims, if it was the last one."""
    here = this_process()
    session = 1 if owner is None else owner.session + (owner.process != here)
    return Owner(session, here, SYSTEM.now(), int(place.beat * SECOND))


# What an older dayjob has written.


async def migrate(ledger: Ledger, version: int | None) -> None:
    """Version 1 had no index of the dead: write it, many commits for many jobs, before the number says so."""
    if version != 1:
        return
    async for rows in ledger.source.scan(
        keys.DEAD
    ):  # Of a migration that was cut off; it may be out of date.
        for stored, _ in rows:
            ledger.delete(stored)
        await ledger.scannable()
    archive, after = Archive(ledger), None
    while dead := await archive.list(JobState.DEAD, lambda _: True, after, _AT_ONCE):
        for found in dead:
            archive.index(found.record)
        after = dead[-1].record.key
    await ledger.scannable()


# What is there.


async def load(ledger: Ledger, session: int) -> Store:
    """All that must be known to work on; what can't be read is set aside as dead."""
    store = Store(ledger, session)
    await load_queues(ledger)
    unreadable = await _load_jobs(store)
    await _load_changes(store, unreadable)
    await _load_claims(store)
    await store.archive.load()
    await store.documents.load()
    _put_in_line(store)
    store.live.newest = max(store.live.newest, store.archive.newest)
    store.orphans = [
        (key, store.live.jobs[key].epoch) for key, whose in store.live.sessions.items() if whose != session
    ]
    _recount(store)
    for key, (record, what) in unreadable.items():
        await store.bodies.need([key])
        store.quarantine(record, what, SYSTEM.now())
    return store


async def load_queues(ledger: Ledger) -> None:
    async for rows in ledger.source.scan(keys.QUEUE):
        for stored, value in rows:
            name = keys.queue_name(stored)
            try:
                found = values.queue(value)
            except Corrupt as error:
                _log.error("the counters of queue %r start anew: %s", name, error)
                ledger.touch(name)
                continue
            ledger.stats[name] = QueueStats(*found.stats)
            if found.paused:
                ledger.paused.add(name)


Unreadable = dict[bytes, tuple[Record, str]]


async def _load_jobs(store: Store) -> Unreadable:
    unreadable: Unreadable = {}
    names: dict[str, str] = {}
    priorities: dict[int, int] = {}
    add, new_record, job_head, id_of = store.live.add, values.new_record, values.job_head, keys.id_of
    async for rows in store.ledger.source.scan(keys.JOB, once=True):
        for stored, value in rows:
            key = id_of(stored)
            try:
                record = new_record(key, job_head(value))
            except Corrupt as error:
                record = Record(key, values.UNREADABLE, JobState.PENDING, 0, 0, 1, 0, 0)
                unreadable[key] = (record, str(error))
            record.queue = names.setdefault(record.queue, record.queue)
            record.priority = priorities.setdefault(record.priority, record.priority)
            add(record)
    return unreadable


async def _load_changes(store: Store, unreadable: Unreadable) -> None:
    live = store.live
    async for rows in store.ledger.source.scan(keys.STATE, once=True):
        for stored, value in rows:
            key = keys.id_of(stored)
            record = live.jobs.get(key)
            if record is None:
                store.ledger.delete(stored)
                continue
            live.changed.add(key)
            try:
                change = values.changed(value)
            except Corrupt as error:
                unreadable[key] = (record, str(error))
                continue
            values.apply(record, change)
            if record.state is JobState.RUNNING:
                live.sessions[key] = change.session
                if record.cancel_requested:
                    live.flagged.add(key)


async def _load_claims(store: Store) -> None:
    """Work out again what claims made of jobs that have not changed since."""
    live = store.live
    async for rows in store.ledger.source.scan(keys.CLAIM):
        for stored, value in rows:
            try:
                claim = values.claimed(value)
            except Corrupt as error:
                _log.error("a claim can't be read, so its jobs are pending again: %s", error)
                claim = Claimed(0, 0, None, [])
            running: set[bytes] = set()
            for key, epoch, lease in claim.entries:
                live.newest = max(live.newest, key)
                record = live.jobs.get(key)
                if record is None:
                    continue
                if record.state is JobState.PENDING and record.epoch == epoch - 1:
                    records.claim(record, claim.now, lease, claim.worker)
                    live.sessions[key] = claim.session
                if records.is_current(record, epoch):
                    running.add(key)
            number = live.open_claim(claim, running, keys.claim_number(stored))
            if not running:
                del live.claims[number]
                store.ledger.delete(stored)


def _put_in_line(store: Store) -> None:
    live = store.live
    lines: dict[str, list[Standing]] = {}
    for record in live.jobs.values():
        live.hold(record)
        if record.state is JobState.PENDING and (record.expires_us is None or record.attempts):
            lines.setdefault(record.queue, []).append((record.priority, record.key))
        else:
            live.stand(record)
    for queue, places in lines.items():
        live.line(queue).fill(places)


def _recount(store: Store) -> None:
    """What waits and runs is counted anew: it is known, and a counter that was wrong is right again."""
    counted: dict[str, QueueStats] = {name: QueueStats() for name in store.ledger.stats}
    for record in store.live.jobs.values():
        stats = counted.get(record.queue)
        if stats is None:
            stats = counted[record.queue] = QueueStats()
        if record.state is JobState.PENDING:
            stats.pending += 1
        elif record.state is JobState.SCHEDULED:
            stats.scheduled += 1
        else:
            stats.running += 1
    for name, stats in counted.items():
        found = store.ledger.stats.get(name)
        now = (stats.pending, stats.scheduled, stats.running)
        if found is None or (found.pending, found.scheduled, found.running) != now:
            found = store.ledger.touch(name)
            found.pending, found.scheduled, found.running = now
