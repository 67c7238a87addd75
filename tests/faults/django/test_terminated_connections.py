"""The server ends all of a site's connections. The next jobs that use the ORM succeed at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.test import override_settings

from dayjob import Task, Worker
from dayjob.contrib.django import app
from tests.contrib.django.settings import POSTGRES, STORE
from tests.faults.django import tasks
from tests.support.bound import BOUND
from tests.support.servers.postgres import server_url

TASKS: list[Task[[], int, Any]] = [tasks.in_thread, tasks.on_loop, tasks.in_child, tasks.on_loop_of_child]


@pytest.fixture(params=[0, None], ids=["a connection for each job", "persistent connections"])
def site(request: pytest.FixtureRequest, postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The site with its jobs in PostgreSQL, also in child processes."""
    monkeypatch.setitem(connections.settings["pg"], "CONN_MAX_AGE", request.param)
    kept = ("NAME", "HOST", "PORT", "USER", "PASSWORD", "CONN_MAX_AGE")
    monkeypatch.setenv(POSTGRES, json.dumps({key: connections.settings["pg"][key] for key in kept}))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.contrib.django.settings")
    monkeypatch.setenv(STORE, '{"DATABASE": "pg"}')
    with override_settings(DAYJOB={"DATABASE": "pg"}):
        yield


def terminate() -> int:
    """End the sessions of the site, and not those of dayjob itself. Return their number."""
    with psycopg.connect(server_url(), autocommit=True) as console:
        found = console.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = %s AND application_name NOT LIKE 'dayjob%%'",
            [connections.settings["pg"]["NAME"]],
        ).fetchall()
    return len(found)


async def run_all() -> None:
    handles = [await task.aenqueue() for task in TASKS]
    for handle in handles:
        assert await handle.aresult(timeout=BOUND) == 0
        job = await handle.arecord()
        assert job is not None
        assert job.attempts == 1, job.errors


async def test_jobs_get_new_connections(site: None, request: pytest.FixtureRequest) -> None:
    persistent = "persistent" in request.node.callspec.id
    async with Worker(app, concurrency=4, threads=1, pool_processes=1):
        await run_all()
        terminated = terminate()
        assert terminated >= 2 or not persistent  # That of the thread and that of the child.
        await run_all()
        closed = await (await tasks.close_connections.aenqueue()).aresult(timeout=BOUND)
        assert closed == persistent
    await app.close()
