"""Enqueue in the transaction of a session of SQLAlchemy: the job exists if the transaction commits.

If queue and session share a database, the job is a part of the transaction. Otherwise it is held in memory
and stored after the commit: a rollback, also to a savepoint, drops it, and so does a process that dies in
between.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import await_only, greenlet_spawn

from dayjob import App, ConfigError, JobHandle, NewJob, Task
from dayjob.app import refuse_event_loop
from dayjob.task import Bound, Options

if TYPE_CHECKING:  # ``sqlalchemy.ext.asyncio`` needs greenlet, which only its users have.
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
    from sqlalchemy.orm import scoped_session

    AnySession = Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]

__all__ = ["in_session"]

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("dayjob.sqlalchemy")
_shared: WeakKeyDictionary[Engine, dict[str, bool]] = WeakKeyDictionary()
"""Whether an engine leads to the database of a queue, by the URL of the queue."""


def in_session(session: AnySession, task: Task[P, R, Any], **options: Unpack[Options]) -> SessionTask[P, R]:
    """Return the task, whose jobs belong to the transaction of the session.

    ``in_session(session, ship).enqueue(order.id)``; with an ``AsyncSession``
    ``await in_session(session, ship).aenqueue(order.id)``. The options are those of ``task.using``.

    A job that is stored after the commit has its id before. With a dedup key that another job holds, no job
    of that id is stored.
    """
    return SessionTask(session() if callable(session) else session, task, options)  # A scoped session is.


class SessionTask(Generic[P, R]):
    """A task whose jobs belong to the transaction of a session."""

    def __init__(self, session: Any, task: Task[P, R, Any], options: Options) -> None:
        self._given = session
        self._session: Session = getattr(session, "sync_session", session)
        self._asynchronous = self._session is not session
        self._task = task
        self._using = task.using(**options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        refuse_event_loop()
        return self._enqueue(self._using.bind(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return await greenlet_spawn(self._enqueue, self._using.bind(*args, **kwargs))

    def _enqueue(self, call: Bound[R]) -> JobHandle[R]:
        """Store the call or hold it. With an ``AsyncSession`` this runs in a greenlet, where it may await."""
        engine, app = self._session.get_bind().engine, self._task.app
        known = _shared.setdefault(engine, {})
        if app.url not in known and not _may_share(app, engine):
            known[app.url] = False
        if app.url in known:
            return self._join(call) if known[app.url] else self._hold(call)
        # An error ends a transaction of PostgreSQL: a savepoint confines that of another database.
        savepoint = engine.dialect.name == "postgresql"
        try:
            with self._session.connection().begin_nested() if savepoint else nullcontext():
                handle = self._join(call)
        except ConfigError as error:
            known[app.url] = False
            _log.info("jobs of %r in sessions on %r are stored after the commit: %s", app, engine.url, error)
            return self._hold(call)
        known[app.url] = True
        return handle

    def _join(self, call: Bound[R]) -> JobHandle[R]:
        using = self._using.using(connection=self._given)
        if self._asynchronous:
            handles: list[JobHandle[R]] = await_only(using.aenqueue_many([call]))
        else:
            handles = using.enqueue_many([call])
        return handles[0]

    def _hold(self, call: Bound[R]) -> JobHandle[R]:
        app = self._task.app
        [job] = app.checked([call.new_job()])
        held: HeldJobs = self._session.info.get(HeldJobs) or HeldJobs(self._session, self._asynchronous)
        held.add(app, job)
        return JobHandle(app, str(job.id), True, self._task.result)


def _may_share(app: App, engine: Engine) -> bool:
    """Return whether the engine may lead to the database of the app, as far as their kinds show."""
    scheme = app.url.partition(":")[0].partition("+")[0]
    kind = "postgresql" if scheme == "postgres" else scheme
    return app.broker.capabilities.transactional_enqueue and engine.dialect.name == kind


class HeldJobs:
    """The jobs of a session that are stored after the commit, by the transaction or savepoint they are in."""

    def __init__(self, session: Session, asynchronous: bool) -> None:
        self._session = session
        self._asynchronous = asynchronous
        self._jobs: dict[SessionTransaction, list[tuple[App, NewJob]]] = {}
        self._committed: SessionTransaction | None = None
        session.info[HeldJobs] = self
        event.listen(session, "after_commit", self._after_commit)
        event.listen(session, "after_transaction_end", self._after_transaction_end)

    def add(self, app: App, job: NewJob) -> None:
        self._jobs.setdefault(self._transaction() or self._session.begin(), []).append((app, job))

    def _transaction(self) -> SessionTransaction | None:
        return self._session.get_nested_transaction() or self._session.get_transaction()

    def _after_commit(self, session: Session) -> None:
        """SQLAlchemy calls this for savepoints too."""
        self._committed = self._transaction()

    def _after_transaction_end(self, session: Session, transaction: SessionTransaction) -> None:
        jobs = self._jobs.pop(transaction, [])
        committed, self._committed = self._committed is transaction, None
        if not jobs or not committed:
            return
        outer = self._transaction()
        if outer is not None:
            self._jobs.setdefault(outer, []).extend(jobs)
            return
        for app in dict.fromkeys(app for app, _ in jobs):
            self._store(app, [job for other, job in jobs if other is app])

    def _store(self, app: App, jobs: list[NewJob]) -> None:
        try:
            if self._asynchronous:
                await_only(app.astore(jobs))
            else:
                app.store(jobs)
        except Exception as error:
            error.add_note(
                f"The transaction of the session has committed, and {len(jobs)} jobs of it are not stored: "
                "enqueue them again."
            )
            raise
        if app.runner is not None and self._asynchronous:
            await_only(app.runner.arun())
        elif app.runner is not None:
            app.runner.run()
