"""The PostgreSQL server that the tests of a session share, with a schema for each test.

The server comes from a wheel. The first process that needs it starts it, and it ends with the last of these
processes. ``DAYJOB_TEST_POSTGRES`` names another server to use instead; its user must be allowed to create
schemas and databases.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import subprocess
import tempfile
from functools import cache
from hashlib import blake2s
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.support.servers.postgres_cluster import Cluster, Seed, free_port, hold_lifeline

ENVIRONMENT = "DAYJOB_TEST_POSTGRES"

_FOLDER = "DAYJOB_TEST_POSTGRES_FOLDER"
"""The environment variable with the folder of the session's server, for child processes."""

_held: list[object] = []
"""Kept until this process ends: its lifeline, and the guard that it started."""

_schemas: set[str] = set()


@cache
def server_url() -> str:
    """Start the session's server if it does not run. Return its URL, without a schema."""
    if url := os.environ.get(ENVIRONMENT):
        return url
    folder = Path(os.environ.setdefault(_FOLDER, _session_folder()))
    _held.append(hold_lifeline(folder))
    address = folder / "address"
    with (folder / "starting").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            draft = folder / "draft"
            draft.touch(0o600)
            draft.write_text(_start(folder))
            draft.rename(address)
    return address.read_text()


def _session_folder() -> str:
    """All workers of a pytest-xdist run share a folder; any other process has its own."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return f"{tempfile.gettempdir()}/dayjob-postgres-{os.getuid()}-{session}"


def _start(folder: Path) -> str:
    cluster = Cluster(folder)
    cluster.create()
    cluster.save_seed()
    line = ""
    for _ in range(3):
        guard = subprocess.Popen(
            cluster.guard_command({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        _held.append(guard)
        assert guard.stdout is not None
        line = guard.stdout.readline()
        if line.startswith("ready"):
            return cluster.url
        cluster.port = free_port()
    raise AssertionError(f"PostgreSQL does not start: {line}")


def seed() -> Seed | None:
    """Return the data to create other servers from; None if the session uses an external server."""
    url = server_url()
    if ENVIRONMENT in os.environ:
        return None
    password = urlsplit(url).password
    assert password is not None
    return Seed(Path(os.environ[_FOLDER]) / "seed", password)


# Schemas.


def schema_of(directory: Path) -> str:
    """Return the name of the directory's schema, always the same one."""
    return f"test_{blake2s(str(directory).encode(), digest_size=10).hexdigest()}"


def schema_url(directory: Path) -> str:
    """Return the URL of the directory's schema. ``drop_schemas`` drops it."""
    schema = schema_of(directory)
    _schemas.add(schema)
    return with_options(server_url(), schema=schema)


def with_options(url: str, **options: str) -> str:
    added = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{url}{'&' if '?' in url else '?'}{added}"


def drop_schemas() -> None:
    """Drop the schemas of ``schema_url`` in this process."""
    while _schemas:
        schema = _schemas.pop()
        for _ in range(4):
            try:
                _console().execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
                break
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                # A killed process still has an open transaction on the server.
                _terminate_users(schema)
        else:
            raise AssertionError(f"the test left the schema {schema} in use")


def _terminate_users(schema: str) -> None:
    _console().execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
        " WHERE relnamespace = to_regnamespace(%s) AND pid <> pg_backend_pid()",
        [schema],
    )


@cache
def _console() -> psycopg.Connection[tuple[object, ...]]:
    console = psycopg.connect(server_url(), autocommit=True, options="-c lock_timeout=500ms")
    atexit.register(console.close)
    return console
