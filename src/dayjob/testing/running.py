"""Running jobs in a test: on a separate store, on demand, or at enqueue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from dayjob.app import App
from dayjob.errors import JobFailed
from dayjob.model.durations import SECOND
from dayjob.model.job import Enqueued, JobState, NewJob
from dayjob.runtime.bridge import Bridge
from dayjob.runtime.ids import new_key
from dayjob.testing.clock import ManualClock
from dayjob.worker import Worker

_draining: ContextVar[bool] = ContextVar("dayjob_testing_draining", default=False)


@contextmanager
def sandbox(app: App, clock: ManualClock | None = None) -> Iterator[App]:
    """Run the block with the app on a new memory store, and on the clock if one is given.

    The app's own brokers are restored afterwards, so an app made for production can be tested as it is.
    """
    before = app.url, app.clock, app._brokers, app._bridge
    app.url = f"memory://sandbox-{new_key().hex()}"
    app.clock = clock
    app._brokers = {}
    app._bridge = bridge = Bridge(f"{app.name}-sandbox")
    try:
        yield app
    finally:
        if app._brokers:
            bridge.run(app.close)
        bridge.stop()
        app.url, app.clock, app._brokers, app._bridge = before


async def adrain(app: App, *, queues: Sequence[str] = (), scheduled: bool = False) -> int:
    """Run the app's jobs until none is claimable. Return the number of runs.

    ``scheduled=True`` also runs the jobs that are due later, including retries: it advances the app's
    ``ManualClock`` to each due time.
    """
    runs = 0
    token = _draining.set(True)
    try:
        while True:
            worker = Worker(app, queues)
            await worker.run_until_idle()
            runs += worker.done
            if not scheduled:
                return runs
            due = await (await app.opened()).next_due()
            if due is None:
                return runs
            if not isinstance(app.clock, ManualClock):
                raise TypeError("scheduled=True advances the clock: use sandbox(app, clock=ManualClock())")
            app.clock.advance(due / SECOND)
    finally:
        _draining.reset(token)


def drain(app: App, *, queues: Sequence[str] = (), scheduled: bool = False) -> int:
    """``adrain`` for synchronous tests."""
    return app.call(lambda: adrain(app, queues=queues, scheduled=scheduled))


@contextmanager
def eager(app: App, *, raises: bool = True) -> Iterator[App]:
    """In the block each job runs when it is enqueued, before ``enqueue`` returns.

    A job that ends dead or cancelled raises ``JobFailed`` from ``enqueue``, unless ``raises`` is false. Jobs
    that a handler enqueues run in the same call. Jobs scheduled for later stay.
    """

    async def run(job: NewJob) -> Enqueued:
        broker = await app.opened()
        enqueued = await broker.enqueue_job(job)
        if not _draining.get():
            await adrain(app)
            record = await broker.get(enqueued.id)
            if raises and record is not None and record.state in (JobState.DEAD, JobState.CANCELLED):
                raise JobFailed(f"job {record.id} ended {record.state.value}: {record.last_error}")
        return enqueued

    before, app.runner = app.runner, run
    try:
        yield app
    finally:
        app.runner = before
