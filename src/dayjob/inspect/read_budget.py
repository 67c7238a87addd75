"""The bound on the cost of one search: records, payload bytes and time."""

from __future__ import annotations

from dayjob.model.job import Job
from dayjob.runtime.clock import SYSTEM

EXAMINED_BYTES = 32 * 2**20
"""About how many payload and result bytes one search reads. Few large records cost as much as many small."""

FIRST_CHUNK, CHUNK = 100, 1000
"""Records per read. The first read is small, because its records may be large."""


class ReadBudget:
    """Counts the records that a search has read, and sizes the next read."""

    def __init__(self, records: int, seconds: float) -> None:
        self._records = records
        self._deadline = SYSTEM.elapsed() + seconds
        self._bytes = 0
        self.examined = 0

    def count(self, job: Job) -> None:
        self.examined += 1
        self._bytes += len(job.payload) + len(job.result or b"")

    @property
    def is_spent(self) -> bool:
        """Whether the search has read enough records or bytes."""
        return self.examined >= self._records or self._bytes >= EXAMINED_BYTES

    @property
    def is_overdue(self) -> bool:
        return SYSTEM.elapsed() >= self._deadline

    def next_chunk(self, first: int = FIRST_CHUNK) -> int:
        """Return how many records to read next. Records like those so far make an eighth of the bytes."""
        size = min(first, FIRST_CHUNK)
        if self.examined:
            size = max(min(CHUNK, EXAMINED_BYTES // 8 * self.examined // max(self._bytes, 1)), 1)
        return min(size, self._records - self.examined)
