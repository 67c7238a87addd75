"""Damage to rows of a database that this process has open, and databases that must be refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from slatedb import uniffi

from dayjob.engines.registry import parse
from dayjob.engines.slatedb import create, handles, keys
from dayjob.engines.slatedb.store_thread import StoreThread
from dayjob.model.job import JobState
from dayjob.runtime.clock import SYSTEM

BROKEN_BODIES = {
    "no body": b"",
    "body of another type": msgspec.msgpack.encode(5),
    "bad headers": msgspec.msgpack.encode([b"", "", {"h": 5}, None]),
    "bad text": msgspec.msgpack.encode([b"", b"\xff", {}, None]),
}
NOT_OURS = {
    "future": (keys.LAYOUT_KEY, msgspec.msgpack.encode({"layout": 9999})),
    "unreadable": (keys.LAYOUT_KEY, b"\xc1"),
    "foreign": (b"their key", b"their value"),
}
BROKEN_VALUES = {"no value": b"", "no version": b"\xffgarbage", "cut short": b"\x01\x00\x00\x01\x00abc"}


def open_thread(url: str) -> StoreThread:
    """Return the thread of a database that this process has open."""
    engine: Any = create(parse(url), SYSTEM)
    thread = handles.find(engine.settings)
    assert thread is not None
    return thread


def damage_job(url: str, key: bytes, what: str) -> None:
    """Replace the job's stored value, or its body, in the database and in the cache."""
    thread = open_thread(url)
    assert thread._loop is not None
    asyncio.run_coroutine_threadsafe(_damage(thread, key, what), thread._loop).result(20)


async def _damage(thread: StoreThread, key: bytes, what: str) -> None:
    batch = thread._write_batch
    rows = {keys.job(key): 2}
    rows |= {keys.finished(state, key): 3 for state in (JobState.DONE, JobState.DEAD, JobState.CANCELLED)}
    changed = 0
    for row, parts in rows.items():
        [value] = await batch.get_all([row])
        if value is not None:
            batch.put(
                row,
                BROKEN_VALUES[what]
                if what in BROKEN_VALUES
                else _with_body(value, parts, BROKEN_BODIES[what]),
            )
            changed += 1
    assert changed == 1
    thread._store.payloads.drop(key)
    await thread._publish()


def _with_body(value: bytes, parts: int, body: bytes) -> bytes:
    end = 1
    for _ in range(parts - 1):
        end += 4 + int.from_bytes(value[end : end + 4], "big")
    return value[:end] + body


def make_database(folder: Path, rows: str) -> None:
    """Create a database that this dayjob must not touch."""
    write_database(folder, dict([NOT_OURS[rows]]))


def write_database(folder: Path, rows: Mapping[bytes, bytes]) -> None:
    async def make() -> None:
        database = await uniffi.DbBuilder(str(folder), uniffi.ObjectStore.resolve("file:///")).build()
        for row in rows.items():
            await (await database.put(*row)).await_durable()
        await database.shutdown()

    with ThreadPoolExecutor(1) as thread:  # The caller's has an event loop of its own.
        thread.submit(asyncio.run, make()).result(30)
