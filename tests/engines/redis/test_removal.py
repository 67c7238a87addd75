"""A namespace is removed by deleting its keys, with the documented command."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from shlex import quote

import pytest

from dayjob import Broker, Limit, NewJob
from tests.engines.redis.conftest import QUIET
from tests.support.arrange import claim_one, dead, running
from tests.support.bound import BOUND
from tests.support.servers.redis import Server, client, executable

DOCS = Path(__file__).parents[3] / "docs" / "engines.md"


def command_line_client() -> str:
    """Return the path of the client beside the server, or on the PATH."""
    server = Path(executable()).resolve()
    name = server.name.replace("-server", "-cli")
    found = shutil.which(name, path=server.parent) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


async def test_the_documented_command_removes_one_namespace_and_it_starts_afresh(server: Server) -> None:
    documented = re.search(r"`(redis-cli --scan [^`]*)`", DOCS.read_text())
    assert documented is not None
    connected = f"{quote(command_line_client())} -s {quote(str(server.socket))}"
    command = documented[1].replace("redis-cli", connected)
    assert command.count(connected) == 2

    name = 'it\'s a "queue"'
    async with Broker(f"{server.url}?prefix=dayjob2", config=QUIET) as other:
        kept = await other.enqueue("q")
        async with Broker(server.url, config=QUIET) as broker:
            await dead(broker)
            await running(broker)
            await broker.set_limit("api", Limit(running=1))
            await broker.enqueue_many([NewJob("q", limits=["api"])] * 2)
            await broker.enqueue(name, bytes(2000), delay=60, kv={b"k": b"v"}, dedup_key="taken")
            await broker.pause("paused")
        await asyncio.to_thread(subprocess.run, command, shell=True, check=True, timeout=BOUND)
        with client(server.url) as connection:
            assert [key for key in connection.scan_iter() if not key.startswith(b"{dayjob2}:")] == []
        async with Broker(server.url, config=QUIET) as broker:
            assert await broker.jobs() == []
            assert await broker.queues() == []
            assert await broker.paused() == set()
            assert await broker.kv_get(b"k") is None
            enqueued = await broker.enqueue(name, dedup_key="taken")
            assert enqueued.created
            assert (await claim_one(broker, name)).id == enqueued.id
        assert (await claim_one(other)).id == kept.id
