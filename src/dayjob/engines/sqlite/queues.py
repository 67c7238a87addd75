"""The queues of a file: their ids and names, their counters, and whether they are paused."""

from __future__ import annotations

from dayjob.engines.record import Tally
from dayjob.engines.sqlite.statements import Statements
from dayjob.model.job import JobState, QueueStats

_COUNTED = tuple(JobState(name) for name in ("pending", "scheduled", "running", "done", "dead", "cancelled"))


class Queues:
    """What one connection knows of the queues; ids and names never change, so they are asked for once."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def forget(self) -> None:
        """After a rollback, which may have undone a new queue."""
        self._ids.clear()
        self._names.clear()

    def id_of(self, name: str) -> int | None:
        found = self._ids.get(name)
        if found is None:
            row = self._statements.one("queue", name)
            if row is not None:
                found = self._ids[name] = row[0]
        return found

    def own_id_of(self, name: str) -> int:
        """The queue's id; the queue is made known if it is new."""
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

    def count(self, tally: Tally) -> None:
        for queue in {queue for queue, _ in tally.deltas}:
            deltas = [tally.deltas.get((queue, state), 0) for state in _COUNTED]
            if any(deltas):
                self._statements.execute("count", *deltas, self.own_id_of(queue))

    def stats(self) -> dict[str, QueueStats]:
        return {row[0]: QueueStats(*row[1:]) for row in self._statements.execute("stats")}

    def pause(self, name: str, paused: bool) -> None:
        self._statements.execute("pause", int(paused), self.own_id_of(name))

    def paused(self) -> set[str]:
        return {row[0] for row in self._statements.execute("paused")}
