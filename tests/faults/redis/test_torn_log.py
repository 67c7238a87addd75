"""A power failure tears the log of Redis in the middle of a transaction; ``redis-check-aof`` repairs it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig
from tests.support.bound import BOUND
from tests.support.observe import check_counters, every_job
from tests.support.servers.redis import Server, client, executable, running_server
from tests.support.servers.redis_audit import check

pytestmark = pytest.mark.slow

QUIET = BrokerConfig(duties=False)
MULTI, EXEC = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"


def log_of(server: Server) -> Path:
    """Return the file to which the server appends. Redis 7 has a folder of files, and a manifest."""
    parts = sorted(server.directory.glob("appendonlydir/*.incr.aof"))
    return parts[-1] if parts else server.directory / "appendonly.aof"


def repair(server: Server) -> None:
    """Run ``redis-check-aof --fix``, which is the server under another name. It asks before it truncates."""
    program = Path(executable())
    tool = server.directory / program.name.replace("server", "check-aof")
    tool.unlink(missing_ok=True)
    tool.symlink_to(program)
    manifest = server.directory / "appendonlydir" / "appendonly.aof.manifest"
    log = manifest if manifest.exists() else log_of(server)
    command = [str(tool), "--fix", str(log)]
    subprocess.run(command, input=b"y\n", capture_output=True, check=True, timeout=BOUND)


def cuts(log: bytes, begin: int) -> Iterator[int]:
    """Yield a place in each command of the transaction that begins there, and each end of a command."""
    last = log.index(EXEC, begin)
    place = begin
    while (place := log.find(b"\r\n*", place, last + len(EXEC))) != -1:
        place += len(b"\r\n")
        yield from (place, place + len(b"*1\r\n$"))


async def test_after_a_repair_a_torn_transaction_is_gone_and_the_jobs_before_it_are_whole() -> None:
    async with running_server(appendonly="yes", appendfsync="always") as server:
        async with Broker(server.url, config=QUIET) as broker:
            for _ in range(3):
                await broker.enqueue("q")
            [job] = await broker.claim("q")
            await broker.ack(job)
            acknowledged = await every_job(broker)
            before = log_of(server).stat().st_size
            await broker.enqueue("q", b"torn")
        await asyncio.to_thread(server.stop)
        log = log_of(server).read_bytes()
        begin = log.index(MULTI, before)
        places = list(cuts(log, begin))
        assert len(places) > 6
        for place in places:
            log_of(server).write_bytes(log[:place])
            repair(server)
            assert log_of(server).read_bytes() == log[:begin]
            await asyncio.to_thread(server.start)
            async with Broker(server.url, config=QUIET) as broker:
                assert await every_job(broker) == acknowledged
                later = await broker.enqueue("q")
            await asyncio.to_thread(server.restart)
            async with Broker(server.url, config=QUIET) as broker:
                assert [each.id for each in await every_job(broker)] == [
                    *(each.id for each in acknowledged),
                    later.id,
                ]
                await check_counters(broker)
            with client(server.url) as connection:
                check(connection, "dayjob")
            await asyncio.to_thread(server.stop)
