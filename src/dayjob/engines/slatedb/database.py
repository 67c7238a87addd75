"""Reads and writes of one open database, by key and by range."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

from slatedb import uniffi

from dayjob.engines.base import Reply
from dayjob.engines.slatedb.ffi import Row, choose
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.errors import DayjobError, EngineUnavailable
from dayjob.runtime.clock import SYSTEM

_ROWS = 1000
_LOG = uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL)
_TABLE = uniffi.FlushOptions(flush_type=uniffi.FlushType.MEM_TABLE)
_CONCURRENT_READS = 64


class Source:
    """A database to read from, through a writer or a reader. SlateDB repeats a refused read for ever.

    A read is cut off at ``deadline``, or after ``timeout`` seconds if that is None. ``cause`` is the reason,
    if it is known.
    """

    def __init__(self, settings: SlateSettings, handle: Any) -> None:
        self.settings = settings
        self.deadline: float | None = None
        self.cause: str | None = None
        self._handle = handle
        self._ffi = choose()

    async def _read(self, work: Awaitable[Reply]) -> Reply:
        deadline = SYSTEM.elapsed() + self.settings.timeout if self.deadline is None else self.deadline
        try:
            async with asyncio.timeout_at(deadline):
                return await work
        except TimeoutError:
            raise self.settings.timed_out(self.cause) from None
        except uniffi.Error as error:
            raise self.settings.translated(error) from error

    async def get(self, key: bytes) -> bytes | None:
        value: bytes | None = await self._read(self._handle.get(key))
        return value

    async def written_ms(self, key: bytes) -> int | None:
        """Return the time of the row's last write by SlateDB's clock, in milliseconds; None without a row."""
        row = await self._read(self._handle.get_key_value(key))
        return None if row is None else int(row.create_ts)

    async def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for start in range(0, len(keys), _CONCURRENT_READS):
            found += await asyncio.gather(*map(self.get, keys[start : start + _CONCURRENT_READS]))
        return found

    async def scan(
        self,
        prefix: bytes,
        *,
        after: bytes | None = None,
        first: bytes | None = None,
        backwards: bool = False,
        chunk: int = _ROWS,
        once: bool = False,
    ) -> AsyncIterator[list[Row]]:
        """Yield the rows under the prefix in chunks, from ``first`` or after ``after``, both without prefix.

        ``once``: the whole range is read once, so each chunk is read ahead and none is cached.
        """
        if backwards:
            bounds = uniffi.KeyRange(start=None, start_inclusive=True, end=after, end_inclusive=False)
        else:
            start = first if after is None else after
            bounds = uniffi.KeyRange(
                start=start, start_inclusive=after is None, end=None, end_inclusive=False
            )
        options = uniffi.ScanOptions(
            durability_filter=uniffi.DurabilityLevel.MEMORY,
            dirty=False,
            read_ahead_bytes=1 << 20,
            cache_blocks=not once,
            max_fetch_tasks=4,
            order=uniffi.IterationOrder.DESCENDING if backwards else uniffi.IterationOrder.ASCENDING,
        )
        iterator = await self._read(self._handle.scan_prefix_with_options(prefix, bounds, options))
        rows = await self._read(self._ffi.rows(iterator, chunk))
        while len(rows) == chunk:
            if once:
                following = asyncio.ensure_future(self._read(self._ffi.rows(iterator, chunk)))
                yield rows
                rows = await following
            else:
                yield rows
                rows = await self._read(self._ffi.rows(iterator, chunk))
        if rows:
            yield rows

    async def rows(self, prefix: bytes) -> AsyncIterator[Row]:
        """Yield the rows under the prefix one by one. ``scan`` is faster for millions of them."""
        async for rows in self.scan(prefix):
            for row in rows:
                yield row

    async def versions(self, prefix: bytes) -> dict[bytes, int]:
        """Return the sequence number of the last write of each row under the prefix."""
        bounds = uniffi.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=False)
        found: dict[bytes, int] = {}
        iterator = await self._read(self._handle.scan_prefix(prefix, bounds))
        while rows := await self._read(iterator.next_batch(_ROWS)):
            found |= {row.key: row.seq for row in rows}
        return found

    async def first(self, prefix: bytes, *, backwards: bool = False) -> Row | None:
        async for rows in self.scan(prefix, backwards=backwards, chunk=1):
            return rows[0]
        return None

    async def close(self) -> None:
        await self._handle.shutdown()


class Database(Source):
    """A writer."""

    async def _write(self, work: Awaitable[Reply]) -> Reply:
        try:
            return await work
        except uniffi.Error as error:
            raise self.settings.translated(error) from error

    async def write(self, changes: Mapping[bytes, bytes | None]) -> uniffi.WriteHandle:
        """Apply the changes atomically; None deletes. It waits while too many are not durable yet."""
        batch = uniffi.WriteBatch()
        put, delete = self._ffi.put, self._ffi.delete
        for key, value in changes.items():
            if value is None:
                delete(batch, key)
            else:
                put(batch, key, value)
        handle: uniffi.WriteHandle = await self._write(self._handle.write(batch))
        return handle

    async def wait_durable(self, handle: uniffi.WriteHandle) -> None:
        await self._write(handle.await_durable())

    async def flush(self, *, table: bool = False) -> None:
        """Make the earlier writes durable, in the log or in a table."""
        await self._write(self._handle.flush_with_options(_TABLE if table else _LOG))

    @property
    def stopped(self) -> DayjobError | None:
        """Return the reason why SlateDB has stopped by itself, if it has."""
        reason: Any = self._handle.status().close_reason
        if reason is uniffi.CloseReason.FENCED:
            return self.settings.lost()
        if reason is None:
            return None
        return EngineUnavailable(
            f"{self.settings.url}: SlateDB has stopped after a failure: the database is opened again"
        )
