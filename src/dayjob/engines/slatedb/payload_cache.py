"""A cache of the stored values of jobs that will be claimed soon.

New jobs are cached while there is room. A miss also reads the jobs that follow by id, since they are likely
to be claimed next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dayjob.engines.slatedb import keys
from dayjob.engines.slatedb.write_batch import WriteBatch

ROOM = 64 << 20
"""The bytes of values to cache."""

_OVERHEAD = 200
_WORTH_A_SCAN = 20
_READ_AHEAD = 1000
_SKIPPED = 20


class PayloadCache:
    """Values by job id. ``is_active`` returns whether a job may still be claimed."""

    def __init__(self, write_batch: WriteBatch, is_active: Callable[[bytes], bool]) -> None:
        self._write_batch = write_batch
        self._is_active = is_active
        self._values: dict[bytes, bytes] = {}
        self._size = 0
        self._skip = 0
        """The number of misses without read-ahead, after a read-ahead that found few useful values."""

    def keep(self, key: bytes, value: bytes) -> None:
        if self._size < ROOM and key not in self._values:
            self._values[key] = value
            self._size += len(value) + _OVERHEAD

    def drop(self, key: bytes) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._size -= len(value) + _OVERHEAD

    def __getitem__(self, key: bytes) -> bytes:
        return self._values[key]

    async def need(self, wanted: Sequence[bytes]) -> None:
        """Read the values of these jobs. A missing value is read as empty, and so as a corrupt one."""
        missing = [key for key in wanted if key not in self._values]
        if not missing:
            return
        staged = self._write_batch.staged
        found = {key: value for key in missing if (value := staged.get(keys.job(key))) is not None}
        missing = [key for key in missing if key not in found]
        if len(missing) >= _WORTH_A_SCAN:
            if self._skip:
                self._skip -= 1
            else:
                following = await self._read_ahead(min(missing))
                useful = {
                    key: value
                    for key, value in following.items()
                    if self._is_active(key) and keys.job(key) not in staged
                }
                found |= useful
                missing = [key for key in missing if key not in found]
                if len(useful) < len(following) // 10:
                    self._skip = _SKIPPED
        if missing:
            read = await self._write_batch.source.get_all([keys.job(key) for key in missing])
            found |= {key: value or b"" for key, value in zip(missing, read, strict=True)}
        self._make_room({*wanted})
        for key, value in found.items():
            if key not in self._values:
                self._values[key] = value
                self._size += len(value) + _OVERHEAD

    async def _read_ahead(self, first: bytes) -> dict[bytes, bytes]:
        source = self._write_batch.source
        async for rows in source.scan(keys.JOB, first=first, chunk=_READ_AHEAD):
            return {keys.id_of(stored): value for stored, value in rows}
        return {}

    def _make_room(self, pinned: set[bytes]) -> None:
        """Drop the oldest values if there are too many."""
        if self._size >= ROOM:
            for key in [key for key in self._values if key not in pinned]:
                if self._size < ROOM // 2:
                    return
                self.drop(key)
