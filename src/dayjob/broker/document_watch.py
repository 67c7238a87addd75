"""For how long documents have not changed, by the elapsed time of the process that watches them.

The engine's clock may be set. Then the times of all documents are wrong at once. So that clock counts only
for the time before the first look at a value, and only in part: one look declares no worker dead.
"""

from __future__ import annotations

from collections.abc import Iterable

from dayjob.engines.base import Document
from dayjob.model.durations import SECOND


class DocumentWatch:
    """The last value of each document, and since when it is unchanged, in seconds of elapsed time."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[bytes, float]] = {}

    def look(self, document: Document, now: int, elapsed: float, credit: float, *, gap: bool = False) -> None:
        """Record the value at the engine's time ``now``.

        ``credit`` is the most that counts of the time before the first look at this value, and of the time
        before this look after a ``gap``.
        """
        value, since = self._seen.get(document.name, (None, 0.0))
        if value != document.value:
            age = (now - document.written_us) / SECOND
            since = elapsed - min(max(age, 0.0), credit)
        elif gap:
            since = max(since, elapsed - credit)
        self._seen[document.name] = (document.value, since)

    def unchanged(self, document: Document, elapsed: float) -> float | None:
        """Return for how many seconds the document has this value; None if there was no look at it."""
        if document.name not in self._seen:
            return None
        value, since = self._seen[document.name]
        return elapsed - since if value == document.value else 0.0

    def keep(self, names: Iterable[str]) -> None:
        """Drop all documents but those with these names."""
        self._seen = {name: self._seen[name] for name in names if name in self._seen}
