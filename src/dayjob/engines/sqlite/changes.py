"""What a verb makes of records, gathered so that it is written in few statements."""

from __future__ import annotations

from dayjob.engines.record import Record, Tally
from dayjob.engines.sqlite.rows import Row, record_row
from dayjob.model.job import FINISHED, JobState
from dayjob.runtime.signals import DUE, Topic, job_topic, queue_topic


class Changes:
    """The rows to save and to remove, how the counters change, and who may want to know."""

    def __init__(self) -> None:
        self.saved: list[Row] = []
        self.removed: list[bytes] = []
        self.topics: set[Topic] = set()
        self.tally = Tally()

    def add(self, record: Record, before: JobState) -> None:
        self.tally.move(before, record)
        if record.removed:
            self.removed.append(record.key)
        else:
            self.saved.append(record_row(record))
        state = record.state
        if state is JobState.PENDING:
            self.topics.add(queue_topic(record.queue))
        elif state is JobState.SCHEDULED:
            self.topics.add(DUE)
        elif state in FINISHED:
            self.topics.add(job_topic(record.key))
        if record.expires_us is not None and record.attempts == 0 and state not in FINISHED:
            self.topics.add(DUE)

    def succeed(self, key: bytes, queue: str) -> None:
        """Remove a running job that succeeded and is not kept."""
        self.tally.add(queue, JobState.RUNNING, -1)
        self.tally.add(queue, JobState.DONE)
        self.removed.append(key)
        self.topics.add(job_topic(key))

    def drop(self, record: Record) -> None:
        """Remove a kept job and its count."""
        self.tally.drop(record.queue, record.state)
        self.removed.append(record.key)
