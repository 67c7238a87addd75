"""The site's databases, and its app on them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connections
from django.test import override_settings

from dayjob.contrib.django import app
from dayjob.runtime.ids import new_key
from tests.contrib.django import BEFORE, site
from tests.support.servers.postgres import server_url

for _name, _value in BEFORE.items():
    os.environ.pop(_name, None)
    if _value is not None:
        os.environ[_name] = _value
time.tzset()


@pytest.fixture(scope="session")
def migrated() -> Iterator[None]:
    site.migrate()
    connections.close_all()
    yield
    connections.close_all()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The alias of a PostgreSQL database of the site."""
    name = f"django_{new_key().hex()}"
    url = urlsplit(server_url())
    with psycopg.connect(server_url(), autocommit=True) as console:
        console.execute(f"CREATE DATABASE {name}")
        connections.settings["pg"] |= {
            "NAME": name, "HOST": url.hostname, "PORT": url.port, "USER": url.username,
            "PASSWORD": url.password or "",
        }  # fmt: skip
        site.migrate("pg")
        connections.close_all()
        yield "pg"
        connections.close_all()
        console.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["default", "pg"])
def shared(request: pytest.FixtureRequest, migrated: None) -> Iterator[str]:
    """The alias of the database in which the site's jobs are: SQLite, then PostgreSQL."""
    alias: str = request.param if request.param == "default" else request.getfixturevalue("postgres")
    with override_settings(DAYJOB={"DATABASE": alias}):
        yield alias
        _clear(alias)


@pytest.fixture
def apart(migrated: None) -> Iterator[None]:
    """The site's jobs are in another store than its rows."""
    with override_settings(DAYJOB={"URL": f"memory://{new_key().hex()}"}):
        yield
        _clear("default")


@pytest.fixture
def configured() -> Iterator[Callable[[Any], None]]:
    """A function that sets ``DAYJOB`` until the test ends."""
    changed: list[Any] = []

    def configure(value: Any) -> None:
        changed.append(override_settings(DAYJOB=value))
        changed[-1].enable()

    yield configure
    for each in reversed(changed):
        each.disable()


def _clear(alias: str) -> None:
    """Remove the jobs and the rows, and close the app, whose URL changes."""

    async def clear() -> None:
        broker = await app.opened()
        for job in await broker.jobs():
            await broker.cancel(job.id)
        await app.close()

    app.call(clear)
    connection = connections[alias]
    while connection.in_atomic_block:  # A failed test may have left it.
        connection.set_rollback(True)
        connection.in_atomic_block = False
    site.groups(alias).all().delete()
    connection.close()
