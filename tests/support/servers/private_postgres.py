"""A PostgreSQL server of one test, which may stop, restart and configure it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from tests.support.bound import BOUND
from tests.support.servers.postgres import seed
from tests.support.servers.postgres_cluster import VERSION, Cluster, free_port, hold_lifeline


class Stop(Enum):
    """How a server ends its sessions: ``FAST`` rolls back and closes them, ``IMMEDIATE`` is a crash."""

    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT

    def __str__(self) -> str:
        return self.name.lower()


class PrivateServer:
    """A server that keeps its data and its port over restarts."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._guard: Process | None = None

    @property
    def url(self) -> str:
        return self._cluster.url

    async def start(self, **settings: str) -> None:
        """Start with these settings over the defaults. The server accepts connections when this returns."""
        line = ""
        for _ in range(3):
            guard = await asyncio.create_subprocess_exec(
                *self._cluster.guard_command(settings),
                stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True,
            )  # fmt: skip
            assert guard.stdout is not None
            async with asyncio.timeout(BOUND):
                line = (await guard.stdout.readline()).decode()
            if line.startswith("ready"):
                self._guard = guard
                return
            await guard.wait()
            assert "in use" in line, f"PostgreSQL does not start: {line}"
            self._cluster.port = free_port()
        raise AssertionError(f"PostgreSQL does not start: {line}")

    async def stop(self, how: Stop = Stop.FAST) -> None:
        """Stop the server, if it runs."""
        guard, self._guard = self._guard, None
        if guard is not None:
            with suppress(ProcessLookupError):
                guard.send_signal(how.value)
            async with asyncio.timeout(BOUND):
                await guard.wait()

    async def restart(self, how: Stop = Stop.FAST, **settings: str) -> None:
        await self.stop(how)
        await self.start(**settings)

    async def promote(self) -> None:
        """End the recovery of a standby: it accepts writes when this returns."""
        await self.fetch("SELECT pg_promote()")

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        """Run a statement as the superuser, on a new connection."""
        console = await AsyncConnection.connect(self.url, autocommit=True, application_name="console")
        async with console:
            cursor = await console.execute(query, arguments)
            return [] if cursor.description is None else await cursor.fetchall()

    async def set(self, name: str, value: str) -> None:
        """Change a setting of the running server, for new and open sessions."""
        await self.fetch(f"ALTER SYSTEM SET {name} = '{value}'")
        await self.fetch("SELECT pg_reload_conf()")
        async with asyncio.timeout(BOUND):
            while (await self.fetch(f"SHOW {name}"))[0][0] != value:
                pass


def _fresh_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dayjob-postgres-"))
    folder.chmod(0o711)
    return folder


def _create(cluster: Cluster, version: str) -> None:
    found = seed() if version == VERSION else None
    if found is None:
        cluster.create()
    else:
        cluster.create_from(found)


REPLICATED = {"wal_level": "replica", "max_wal_senders": "8"}
"""The settings of a server that has standbys."""


@asynccontextmanager
async def standby_of(primary: PrivateServer) -> AsyncIterator[PrivateServer]:
    """Run a standby that follows the primary, during the block. Both have the settings ``REPLICATED``."""
    folder = _fresh_folder()
    lifeline = hold_lifeline(folder)
    try:
        cluster = Cluster(folder)
        await asyncio.to_thread(cluster.create_standby, primary._cluster)
        server = PrivateServer(cluster)
        await server.start(**REPLICATED)
        try:
            yield server
        finally:
            await server.stop(Stop.IMMEDIATE)
    finally:
        os.close(lifeline)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@asynccontextmanager
async def private_server(version: str = VERSION, **settings: str) -> AsyncIterator[PrivateServer]:
    """Run a new server during the block."""
    folder = _fresh_folder()
    lifeline = hold_lifeline(folder)
    try:
        cluster = Cluster(folder, version)
        await asyncio.to_thread(_create, cluster, version)
        server = PrivateServer(cluster)
        await server.start(**settings)
        try:
            yield server
        finally:
            await server.stop(Stop.IMMEDIATE)
    finally:
        os.close(lifeline)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
