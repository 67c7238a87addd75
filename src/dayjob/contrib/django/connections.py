"""The site's database connections around each job: closed if old or broken, and checked on first use.

A plain function runs in a thread of the worker or in a child process, which keeps its connections between
jobs as ``CONN_MAX_AGE`` allows. A coroutine runs its ORM calls in a thread of its own, as an asynchronous
request does in Django. That thread and its connections end with the job.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext
from django.db import connections

from dayjob.context import CALLING_THREAD


def renew_connections() -> None:
    """Close connections that are old or had an error. The next use of the others checks them first.

    Nothing is closed inside a transaction, such as that of a ``TestCase``.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
            connection.health_check_enabled = True


async def own_connections(call: Callable[[], Awaitable[Any]]) -> Any:
    """Await a coroutine whose ORM calls run in a thread of its own, or in the thread of a test."""
    calling_thread = CALLING_THREAD.get()
    if calling_thread is not None:
        before = getattr(AsyncToSync.executors, "current", None)
        AsyncToSync.executors.current = calling_thread
        try:
            return await call()
        finally:
            AsyncToSync.executors.current = before
    thread = ThreadSensitiveContext()
    token = SyncToAsync.thread_sensitive_context.set(thread)
    try:
        return await call()
    finally:
        SyncToAsync.thread_sensitive_context.reset(token)
        executor = SyncToAsync.context_to_thread_executor.pop(thread, None)
        if executor is not None:  # There was an ORM call. It may still run: a timeout does not wait for it.
            executor.submit(connections.close_all)
            executor.shutdown(wait=False)


def with_own_connections(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function for a child process, where no middleware for coroutines runs."""

    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await own_connections(functools.partial(function, *args, **kwargs))

    return wrapped
