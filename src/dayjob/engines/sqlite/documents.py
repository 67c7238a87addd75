"""Notes: what dayjob itself keeps by kind and name, replaced only by who knows what was there."""

from __future__ import annotations

from collections.abc import Sequence

from dayjob.engines.base import Document, DocumentWrite
from dayjob.engines.sqlite.statements import Statements


class Documents:
    """The notes as one connection sees them.

    A comparison and the write that it allows must share a transaction that holds the write lock.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def of(self, kind: str) -> list[Document]:
        return [Document(*row) for row in self._statements.execute("notes", kind).fetchall()]

    def are_as_expected(self, writes: Sequence[DocumentWrite]) -> bool:
        return all(self._value(write.kind, write.name) == write.expected for write in writes)

    def _value(self, kind: str, name: str) -> bytes | None:
        row = self._statements.one("note", kind, name)
        return None if row is None else row[0]

    def write(self, writes: Sequence[DocumentWrite], now: int) -> None:
        for write in writes:
            if write.value is None:
                self._statements.execute("remove_note", write.kind, write.name)
            else:
                self._statements.execute("write_note", write.kind, write.name, now, write.value)
