"""The app of a Django site: configured by ``DAYJOB``, in the transactions and connections of the site."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from msgspec import Struct

from dayjob import App, Context, Enqueued, InvalidState, Job, NewJob, Task
from dayjob.app import refuse_event_loop
from dayjob.context import CALLING_THREAD
from dayjob.contrib.django.configuration import (
    TASK_HEADER,
    backend_queues,
    configuration,
    configured_url,
    joinable_alias,
)  # fmt: skip
from dayjob.contrib.django.connections import own_connections, renew_connections, with_own_connections
from dayjob.model.recurring import Schedule
from dayjob.runtime.bridge import Wait
from dayjob.task import is_coroutine_function

Answer = TypeVar("Answer")


class DjangoApp(App):
    """The tasks of a Django site. ``from dayjob.contrib.django import app``.

    In a transaction of the site, ``enqueue`` stores the job in that very transaction if the store is in the
    same database, or else after the commit. A rollback, also of an inner ``atomic`` block, removes the job.
    """

    setup_modules = ("dayjob.contrib.django.site_app",)

    def __init__(self) -> None:
        self._other_url: str | None = None
        super().__init__(
            "memory://django", name="django", config=configuration().get("CONFIG"),
            middleware=(self._around_coroutine, self._around_function),
        )  # fmt: skip
        self._other_url = None

    @property
    def url(self) -> str:
        """The URL of the store, by the settings as they are now: in a test, the test database."""
        return self._other_url or configured_url()

    @url.setter
    def url(self, url: str) -> None:
        """Set another URL, as a sandbox does, until the configured one is set again."""
        self._other_url = None if self._other_url is not None and url == configured_url() else url

    # Tasks.

    def _register(
        self, function: Callable[..., Any], name: str | None, options: dict[str, Any], raw: bool
    ) -> Task[Any, Any, Any]:
        if options.get("pool") == "process" and is_coroutine_function(function):
            function = with_own_connections(function)
        return super()._register(function, name, options, raw)

    async def _around_coroutine(self, context: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """The middleware of coroutines."""
        task = self.find(context.job)
        if task is None or task.pool is not None:
            return await call_next()
        try:
            return await own_connections(call_next)
        finally:
            if (thread := CALLING_THREAD.get()) is not None:
                work = partial(copy_context().run, self._store_committed)
                await asyncio.get_running_loop().run_in_executor(thread, work)

    def _around_function(self, context: Context, call_next: Callable[[], Any]) -> Any:
        """The middleware of plain functions."""
        renew_connections()
        try:
            return call_next()
        finally:
            renew_connections()
            self._store_committed()

    def find(self, job: Job | Schedule) -> Task[Any, Any, Any] | None:
        found = super().find(job)
        if found is None and isinstance(job, Job) and TASK_HEADER in job.headers:
            from dayjob.contrib.django.backend import imported_task

            found = imported_task(job)
        return found

    def queues(self) -> tuple[str, ...]:
        """Return the queues of the tasks, and those of ``DayjobBackend`` in ``TASKS``."""
        return tuple(dict.fromkeys([*super().queues(), *(backend_queues() or ())]))

    # Transactions.

    def store(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Enqueued]:
        stored = None if connection is not None else self._store_in_transaction(jobs)
        return super().store(jobs, connection) if stored is None else stored

    async def astore(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Enqueued]:
        stored = None
        if connection is None and configuration().get("TRANSACTIONAL", True):
            stored = await sync_to_async(self._store_in_transaction)(jobs)  # In the thread of the ORM calls.
        return await super().astore(jobs, connection) if stored is None else stored

    def _store_in_transaction(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        """Store the jobs in this thread's transaction or after its commit. Return None if there is none."""
        if not configuration().get("TRANSACTIONAL", True):
            return None
        begun = [each for each in connections.all(initialized_only=True) if self._in_transaction(each)]
        if not begun:
            return None
        joinable = joinable_alias(self.url)
        for connection in begun:
            if connection.alias == joinable:
                return super().store(jobs, connection)
        waits_for = min(begun, key=lambda each: each.alias != DEFAULT_DB_ALIAS)
        if not waits_for.in_atomic_block:
            raise InvalidState(
                f"connection {waits_for.alias!r} has autocommit off, so its commit can't be noticed: enqueue "
                "in transaction.atomic(), or after the commit"
            )
        refuse_event_loop()  # The store after the commit would refuse it, and the job would be lost.
        checked = self.checked(jobs)
        transaction.on_commit(StoreLater(self, checked), using=waits_for.alias)
        return [Enqueued(str(job.id), True) for job in checked]

    def _in_transaction(self, connection: Any) -> bool:
        """Return whether the connection is in a transaction. In a sandbox, that of a ``TestCase`` is none."""
        if not connection.in_atomic_block:
            return connection.connection is not None and not connection.autocommit
        return self.before_use is None or _in_code(connection)

    # Tests.

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, Answer]],
        keep_open: bool = True,
        wait: Wait[Answer] | None = None,
    ) -> Answer:
        self._store_committed()
        return super().call(work, keep_open, wait)

    def _store_committed(self) -> None:
        """In a sandbox, store the jobs whose ``atomic`` block has ended inside that of a ``TestCase``.

        That transaction is never committed, so Django does not call ``on_commit`` functions.
        """
        if self.before_use is None:
            return
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block or _in_code(connection):
                continue
            ready = [each for each in connection.run_on_commit if isinstance(each[1], StoreLater)]
            connection.run_on_commit = [each for each in connection.run_on_commit if each not in ready]
            for _, store, *_ in ready:
                store()


class StoreLater(Struct, eq=False):
    """Stores jobs after a commit."""

    _app: DjangoApp
    _jobs: Sequence[NewJob]

    def __call__(self) -> None:
        App.store(self._app, self._jobs)
        if self._app.runner is not None:
            self._app.runner.run()


def _in_code(connection: Any) -> bool:
    """Return whether an ``atomic`` block is open that is not one of a ``TestCase``."""
    return any(not block._from_testcase for block in connection.atomic_blocks)
