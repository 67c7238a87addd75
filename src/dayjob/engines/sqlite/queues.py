"""The queues of a file: ids, names, counters, and whether they are paused."""

from __future__ import annotations

from dayjob.engines.sqlite.statements import Statements
from dayjob.engines.store import Deltas
from dayjob.model.job import JobState, QueueStats

_COUNTED = tuple(JobState(name) for name in ("pending", "scheduled", "running", "done", "dead", "cancelled"))


class Queues:
    """The queues as one connection sees them. Ids and names never change, so they are cached."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def discard(self) -> None:
        """Drop the cache after a rollback, which may have undone a new queue."""
        self._ids.clear()
        self._names.clear()

    def id_of(self, name: str) -> int | None:
        found = self._ids.get(name)
        if found is None:
            row = self._statements.one("queue", name)
            if row is not None:
                found = self._ids[name] = row[0]
        return found

    def make_id_of(self, name: str) -> int:
        """Return the queue's id. A new queue is added."""
        found = self.id_of(name)
        if found is None:
            found = self._statements.execute("add_queue", name).lastrowid
            assert found is not None
            self._ids[name] = found
        return found

    def name_of(self, queue_id: int) -> str:
        name = self._names.get(queue_id)
        if name is None:
            row = self._statements.one("queue_name", queue_id)
            assert row is not None, f"job on unknown queue {queue_id}"
            name = self._names[queue_id] = row[0]
        return name

    def count(self, deltas: Deltas) -> None:
        for queue in {queue for queue, _ in deltas}:
            changes = [deltas.get((queue, state), 0) for state in _COUNTED]
            if any(changes):
                self._statements.execute("count", *changes, self.make_id_of(queue))

    def stats(self) -> dict[str, QueueStats]:
        return {row[0]: QueueStats(*row[1:]) for row in self._statements.execute("stats")}

    def pause(self, name: str, paused: bool) -> None:
        self._statements.execute("pause", int(paused), self.make_id_of(name))

    def is_paused(self, name: str) -> bool:
        queue_id = self.id_of(name)
        return queue_id is not None and self._statements.one("is_paused", queue_id) == (1,)

    def paused(self) -> set[str]:
        return {row[0] for row in self._statements.execute("paused")}
