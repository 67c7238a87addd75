"""Servers end with their last user."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import psycopg
import pytest

from tests.support.processes import ROOT, until
from tests.support.servers.postgres import ENVIRONMENT, drop_schemas, schema_of, schema_url, server_url
from tests.support.servers.private_postgres import PrivateServer, Stop, private_server

pytestmark = pytest.mark.slow

USER = """
import sys
from tests.support.servers.postgres import server_url
print(server_url(), flush=True)
sys.stdin.read()
"""


async def user(session: str) -> tuple[Process, str]:
    """Start a process of a test session that uses the session's server. Return it, and the URL."""
    others = ("DAYJOB_TEST_POSTGRES_FOLDER", ENVIRONMENT)
    environment = {name: value for name, value in os.environ.items() if name not in others}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", USER, stdin=PIPE, stdout=PIPE, cwd=ROOT,
        env={**environment, "PYTEST_XDIST_TESTRUNUID": session},
    )  # fmt: skip
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


def is_running(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


async def test_processes_of_a_session_share_a_server_that_ends_with_the_last(
    tmp_path: Path,
) -> None:
    session = schema_of(tmp_path)
    users = await asyncio.gather(*(user(session) for _ in range(4)))
    urls = {url for _, url in users}
    assert len(urls) == 1
    (url,) = urls
    for process, _ in users:
        assert is_running(url)
        process.kill()
        await process.communicate()

    async def gone() -> bool:
        return not is_running(url)

    await until(gone)


async def test_a_private_server_keeps_its_data_over_restarts() -> None:
    async with private_server(max_connections="20") as server:
        assert (await server.fetch("SHOW max_connections"))[0][0] == "20"
        await server.fetch("CREATE TABLE kept AS SELECT 7 AS number")
        for how in Stop:
            await server.restart(how)
            assert await server.fetch("SELECT number FROM kept") == [(7,)]
        assert (await server.fetch("SHOW max_connections"))[0][0] == "300"
        await check_settings(server)
        await server.stop()
        assert not is_running(server.url)
        await server.start()
        assert is_running(server.url)
    assert not is_running(server.url)


async def check_settings(server: PrivateServer) -> None:
    await server.set("default_transaction_read_only", "on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await server.fetch("CREATE TABLE refused ()")
    await server.set("default_transaction_read_only", "off")
    await server.fetch("CREATE TABLE accepted ()")


def test_a_directory_has_one_schema_until_it_is_dropped(tmp_path: Path) -> None:
    url = schema_url(tmp_path)
    assert url == schema_url(tmp_path)
    assert url != schema_url(tmp_path / "other")
    name = schema_of(tmp_path)
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name} CREATE TABLE jobs (id int)")
        drop_schemas()
        assert connection.execute("SELECT to_regnamespace(%s)", [name]).fetchone() == (None,)


def test_a_schema_in_use_is_dropped(tmp_path: Path) -> None:
    schema_url(tmp_path)
    name = schema_of(tmp_path)
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name} CREATE TABLE jobs (id int)")
        user = psycopg.connect(server_url())
        user.execute(f"SELECT * FROM {name}.jobs")
        drop_schemas()
        assert connection.execute("SELECT to_regnamespace(%s)", [name]).fetchone() == (None,)
        user.close()
