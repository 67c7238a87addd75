"""Notes: few, so all of them are in memory, and a write is a comparison there and a row for each."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import blake2b

import msgspec

from dayjob.engines.base import Document, DocumentWrite, Insertion
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.database import Source
from dayjob.engines.slatedb.ledger import Ledger
from dayjob.engines.slatedb.values import Corrupt
from dayjob.runtime.signals import documents_topic

_log = logging.getLogger("dayjob.engines.slatedb")

REMEMBERED = 10_000
"""How many writes whose answers nobody got are kept in mind."""


async def stored_notes(source: Source, prefix: bytes) -> AsyncIterator[tuple[str, Document]]:
    """Kinds and notes under the prefix, in the order of their keys; one that can't be read is left out."""
    async for rows in source.scan(prefix):
        for stored, value in rows:
            kind, name = keys.note_parts(stored)
            try:
                noted = values.noted(value)
            except Corrupt as error:
                _log.error("the note %r of kind %r counts as none: %s", name, kind, error)
                continue
            yield kind, Document(name, noted.value, noted.written_us)


class Documents:
    """All notes by kind and name."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[str, dict[str, Document]] = {}
        self._lost: dict[bytes, None] = {}
        """Writes that were made, but whose callers were told that the store is unavailable."""

    async def load(self) -> None:
        async for kind, note in stored_notes(self._ledger.source, keys.NOTE):
            self._kept.setdefault(kind, {})[note.name] = note

    def of(self, kind: str) -> list[Document]:
        """In the order of the names, which for text is that of their bytes."""
        kept = self._kept.get(kind, {})
        return [kept[name] for name in sorted(kept)]

    def as_expected(self, writes: Iterable[DocumentWrite]) -> bool:
        return all(self._value(write) == write.expected for write in writes)

    def _value(self, write: DocumentWrite) -> bytes | None:
        found = self._kept.get(write.kind, {}).get(write.name)
        return None if found is None else found.value

    def write(self, writes: Iterable[DocumentWrite], announce: bool, now: int) -> None:
        for write in writes:
            kept, row = self._kept.setdefault(write.kind, {}), keys.note(write.kind, write.name)
            if write.value is not None:
                kept[write.name] = Document(write.name, write.value, now)
                self._ledger.put(row, values.note_value(write.value, now))
            elif kept.pop(write.name, None) is not None:
                self._ledger.delete(row)
            if announce:
                self._ledger.topics.add(documents_topic(write.kind))

    # Answers that were lost. What is asked for again is known by what it would write.

    def remember(self, writes: Sequence[DocumentWrite], jobs: Sequence[Insertion]) -> None:
        """Nobody has learned that these were written; of very many, the latest are kept in mind."""
        self._lost[_mark(writes, jobs)] = None
        if len(self._lost) > REMEMBERED:
            del self._lost[next(iter(self._lost))]

    def recall(self, writes: Sequence[DocumentWrite], jobs: Sequence[Insertion]) -> bool:
        """Whether these were written and nobody has learned of it, until now."""
        if not self._lost:
            return False
        mark = _mark(writes, jobs)
        found = mark in self._lost
        self._lost.pop(mark, None)
        return found


def _mark(writes: Sequence[DocumentWrite], jobs: Sequence[Insertion]) -> bytes:
    """Short, for the values may be long."""
    return blake2b(msgspec.msgpack.encode((writes, [job.key for job in jobs])), digest_size=16).digest()
