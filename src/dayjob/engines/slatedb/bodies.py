"""The stored values of jobs, as far as they are worth keeping in memory: those that will be claimed soon.

A claim finds what it needs here, as a rule: new jobs are kept while there is room, and a miss reads on
from where it is, because what comes next by id is likely to be claimed next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dayjob.engines.slatedb import keys
from dayjob.engines.slatedb.ledger import Ledger

ROOM = 64 << 20
"""Bytes of values kept in memory."""

_OVERHEAD = 200
_WORTH_A_SCAN = 20
_AHEAD = 1000
_DISCOURAGED = 20


class Bodies:
    """Values by job id. ``wanted`` tells of an id whether its value may be needed soon."""

    def __init__(self, ledger: Ledger, wanted: Callable[[bytes], bool]) -> None:
        self._ledger = ledger
        self._wanted = wanted
        self._values: dict[bytes, bytes] = {}
        self._size = 0
        self._discouraged = 0
        """How many misses to go without reading ahead, since that did not pay the last time."""

    def keep(self, key: bytes, value: bytes) -> None:
        """Keep the value if there is room."""
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
        """Have the values of these jobs; one that is not there at all is empty, and so a corrupt one."""
        missing = [key for key in wanted if key not in self._values]
        if not missing:
            return
        staged = self._ledger.staged
        found = {key: value for key in missing if (value := staged.get(keys.job(key))) is not None}
        missing = [key for key in missing if key not in found]
        if len(missing) >= _WORTH_A_SCAN:
            if self._discouraged:
                self._discouraged -= 1
            else:
                ahead = await self._read_ahead(min(missing))
                useful = {
                    key: value
                    for key, value in ahead.items()
                    if self._wanted(key) and keys.job(key) not in staged
                }
                found |= useful
                missing = [key for key in missing if key not in found]
                if len(useful) < len(ahead) // 10:
                    self._discouraged = _DISCOURAGED
        if missing:
            read = await self._ledger.source.get_all([keys.job(key) for key in missing])
            found |= {key: value or b"" for key, value in zip(missing, read, strict=True)}
        self._make_room({*wanted})
        for key, value in found.items():
            if key not in self._values:
                self._values[key] = value
                self._size += len(value) + _OVERHEAD

    async def _read_ahead(self, first: bytes) -> dict[bytes, bytes]:
        source = self._ledger.source
        async for rows in source.scan(keys.JOB, first=first, chunk=_AHEAD):
            return {keys.id_of(stored): value for stored, value in rows}
        return {}

    def _make_room(self, pinned: set[bytes]) -> None:
        """Drop the longest kept, should they be too many."""
        if self._size >= ROOM:
            for key in [key for key in self._values if key not in pinned]:
                if self._size < ROOM // 2:
                    return
                self.drop(key)
