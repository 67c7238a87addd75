"""The events of a stored outcome."""

from __future__ import annotations

from dayjob.broker.validation import error_text
from dayjob.events import Event, Events
from dayjob.model.job import Job, JobState
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement, SettleResult


def emit_outcome(events: Events, job: Job, settlement: Settlement, result: SettleResult) -> None:
    """Emit the events of a settled run."""
    for name in _names(settlement, result.state):
        if events.wants(name):
            error = None if settlement.error is None else error_text(settlement.error)
            event = Event(name, job.id, job.queue, job.task, job, JobState.RUNNING, result.state, error)
            events.emit(event)


def _names(settlement: Settlement, state: JobState | None) -> tuple[str, ...]:
    if state is JobState.DONE:
        return ("job.succeeded",)
    if state is JobState.CANCELLED:
        return ("job.cancelled",)
    if state is JobState.DEAD:
        return ("job.failed", "job.dead")
    return ("job.failed", "job.retrying") if settlement.transition is Transition.NACK else ()
