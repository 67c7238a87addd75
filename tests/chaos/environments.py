"""The storages of a run, each with the faults that it can have."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit
from typing import Any

import psycopg

from dayjob.runtime.clock import SYSTEM
from tests.chaos.fleet import Fleet
from tests.chaos.load import LEASE
from tests.chaos.seeded import Choices
from tests.engines.slatedb.s3 import BUCKET, CREDENTIALS, Server, proxying
from tests.support.processes import pause
from tests.support.servers import redis_clock
from tests.support.servers.postgres import with_options
from tests.support.servers.postgres_cluster import free_port
from tests.support.servers.postgres_proxy import proxy
from tests.support.servers.private_postgres import REPLICATED, PrivateServer, Stop, private_server, standby_of
from tests.support.servers.proxy import proxied
from tests.support.servers.redis import Server as RedisServer
from tests.support.servers.redis import client, running_server

Harm = Callable[[Choices], Awaitable[None]]

TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, 'dayjob')"
)

TIMEOUT = 4
"""Seconds for which a call is repeated. Longer faults leave calls without an answer."""

FILE_LIMIT = 2**21
"""The size of files on a disk that is full, in bytes. The files of a record are smaller."""


STEPS = (600.0, -600.0, 86_400.0, -86_400.0, 31_536_000.0, -31_536_000.0)
"""Steps of a clock in seconds: ten minutes, a day, a year."""

FAST_LINK, SLOW_LINK = 4_000_000.0, 200_000.0
"""Bytes per second of a slow link."""

REPLICATION_LAG = 1.0
"""Seconds that a replica may be behind."""


class Environment:
    """A storage and its faults. ``single``: one process has all roles."""

    def __init__(self, name: str, url: str, *, single: bool = False) -> None:
        self.name = name
        self.url = url
        self.single = single
        self.durable = True
        """Whether processes may be killed."""
        self.own_clock = False
        """Whether the storage has a clock of its own, which the clock of a host does not change."""
        self.faults: dict[str, Harm] = {}
        self.take_over: str | None = None
        """The URL by which another process takes the storage over."""
        self.fleet: Fleet | None = None
        self.lossy_since: float | None = None
        """When the fault that is under way began to lose writes."""
        self.step = 0.0
        """The seconds by which the fault that is under way sets the engine's clock."""

    def loses_writes(self) -> None:
        """Mark the beginning of the time in which the fault under way loses writes, by contract."""
        self.lossy_since = SYSTEM.elapsed() - REPLICATION_LAG

    @property
    def pids(self) -> list[int]:
        assert self.fleet is not None
        return [slot.child.pid for slot in self.fleet.slots if slot.child is not None]


@asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[Environment]:
    environment = Environment("memory", "memory://chaos", single=True)
    environment.durable = False
    yield environment


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Environment]:
    path = folder / "jobs.db"
    environment = Environment("sqlite", f"sqlite:///{path}?timeout={TIMEOUT}")

    async def lock(choices: Choices) -> None:
        """Another program has the file locked."""
        seconds = choices.seconds(0.2, TIMEOUT + 1)
        connecting = closing(sqlite3.connect(path, timeout=0, isolation_level=None))
        with connecting as connection, suppress(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")
            await pause(seconds)
            connection.execute("ROLLBACK")

    async def full_disk(choices: Choices) -> None:
        """No file grows beyond a size that the database has reached."""
        pids = environment.pids
        _limit_files(pids, FILE_LIMIT)
        await pause(choices.seconds(0.2, 3))
        _limit_files([*pids, *environment.pids], RLIM_INFINITY)

    environment.faults = {"locked file": lock, "full disk": full_disk}
    yield environment


def _limit_files(pids: list[int], size: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            prlimit(pid, RLIMIT_FSIZE, (size, RLIM_INFINITY))


@asynccontextmanager
async def postgres(folder: Path) -> AsyncIterator[Environment]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(private_server(**REPLICATED))
        wire = await stack.enter_async_context(proxy(server.url))
        environment = Environment("postgres", with_options(wire.through(server.url), timeout=str(TIMEOUT)))
        environment.own_clock = True

        async def restart(choices: Choices) -> None:
            await server.stop(choices.one(list(Stop)))
            await pause(choices.seconds(0, 2))
            await server.start(**REPLICATED)

        async def promote(choices: Choices) -> None:
            """A standby takes over, and the primary accepts writes for a while after that: they are lost."""
            nonlocal server
            standby = await stack.enter_async_context(standby_of(server))
            await pause(0.5)
            environment.loses_writes()
            await standby.promote()
            await pause(choices.seconds(0, 1))
            await server.stop(Stop.IMMEDIATE)
            server = standby
            wire.lead_to(server.url)
            wire.cut()

        async def terminate(choices: Choices) -> None:
            some = choices.one(["", " AND random() < 0.5"])
            with suppress(psycopg.Error):
                await server.fetch(f"{TERMINATE}{some}")

        async def read_only(choices: Choices) -> None:
            await server.set("default_transaction_read_only", "on")
            await pause(choices.seconds(0.2, 2))
            await server.set("default_transaction_read_only", "off")

        async def cut(_: Choices) -> None:
            wire.cut()

        async def refuse(choices: Choices) -> None:
            wire.refuse()
            wire.cut()
            await pause(choices.seconds(0.2, TIMEOUT + 2))
            await wire.accept()

        async def stall(choices: Choices) -> None:
            wire.stall()
            await pause(choices.seconds(0.2, LEASE * 2))
            wire.resume()

        async def lose_replies(choices: Choices) -> None:
            """The server commits, and the client gets no answer."""
            for _ in range(1 + choices.number(5)):
                wire.lose_reply(lambda statement: True)
            await pause(0.3)

        async def slow(choices: Choices) -> None:
            wire.bytes_per_second = choices.one([FAST_LINK, SLOW_LINK])
            await pause(choices.seconds(0.5, 3))
            wire.bytes_per_second = None

        async def set_clock(choices: Choices) -> None:
            """Replace the function that reads the server's clock, for a while."""
            environment.step = choices.one(STEPS)
            ((right,),) = await server.fetch("SELECT pg_get_functiondef('dayjob.now_us'::regproc)")
            wrong = f"(clock_timestamp() + make_interval(secs => {environment.step}))"
            await server.fetch(right.replace("clock_timestamp()", wrong))
            await pause(choices.seconds(0.5, 3))
            await server.fetch(right)

        async def full_disk(choices: Choices) -> None:
            """Statements that store rows fail, all or some of them, as they do on a full disk."""
            await server.fetch(DISK_FULL.replace("some", str(choices.one([1.0, 0.5, 0.1]))))
            for statement in await server.fetch(FULL_TABLES):
                await _until_done(server, *statement)
            await pause(choices.seconds(0.2, 3))
            await _until_done(server, "DROP FUNCTION disk_full CASCADE")

        environment.faults = {
            "server restarted": restart, "sessions terminated": terminate, "read-only server": read_only,
            "connections cut": cut, "connections refused": refuse, "black hole": stall,
            "replies lost": lose_replies, "standby promoted": promote, "slow link": slow,
            "server clock set": set_clock, "full disk": full_disk,
        }  # fmt: skip
        yield environment
        wire.resume()
        await wire.accept()


DISK_FULL = """
CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF random() < some THEN
        RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full';
    END IF;
    RETURN NULL;
END $$
"""
"""A trigger that fails as the server does when the disk of its tables is full."""

FULL_TABLES = """
SELECT format('CREATE TRIGGER disk_full BEFORE INSERT OR UPDATE ON %%I.%%I EXECUTE FUNCTION disk_full()',
    schemaname, tablename)
FROM pg_tables WHERE schemaname = 'dayjob'
"""


async def _until_done(server: PrivateServer, statement: str) -> None:
    """Run a statement that changes tables, again after a deadlock with the load."""
    while True:
        with suppress(psycopg.errors.DeadlockDetected):
            await server.fetch(statement)
            return


@asynccontextmanager
async def redis(folder: Path) -> AsyncIterator[Environment]:
    async with AsyncExitStack() as stack:
        server, port = await _redis_server(stack)
        wire = await stack.enter_async_context(proxied(server.socket))
        environment = Environment("redis", wire.url("chaos", f"&timeout={TIMEOUT}"))
        environment.own_clock = True

        async def restart(choices: Choices) -> None:
            await asyncio.to_thread(server.stop)
            await pause(choices.seconds(0, 2))
            await asyncio.to_thread(server.start)

        async def promote(choices: Choices) -> None:
            """A replica takes over, and the primary accepts writes for a while after that: they are lost."""
            nonlocal server, port
            replica, replica_port = await _redis_server(stack)
            with client(replica.url) as connection:
                connection.execute_command("REPLICAOF", "127.0.0.1", str(port))
                while connection.info("replication")["master_link_status"] != "up":
                    await pause(0.02)
                await pause(0.2)
                environment.loses_writes()
                connection.execute_command("REPLICAOF", "NO", "ONE")
            await pause(choices.seconds(0, 1))
            await asyncio.to_thread(server.stop)
            server, port = replica, replica_port
            wire.socket = server.socket
            await wire.cut()

        async def kill_clients(_: Choices) -> None:
            with client(server.url) as connection:
                connection.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                connection.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

        async def cut(_: Choices) -> None:
            await wire.cut()

        async def refuse(choices: Choices) -> None:
            await wire.stop()
            await pause(choices.seconds(0.2, TIMEOUT + 2))
            await wire.start()

        async def stall(choices: Choices) -> None:
            wire.stall()
            await pause(choices.seconds(0.2, LEASE * 2))
            wire.resume()

        async def lose_replies(choices: Choices) -> None:
            wire.losing += 1 + choices.number(5)
            await pause(0.3)

        async def slow(choices: Choices) -> None:
            wire.bytes_per_second = choices.one([FAST_LINK, SLOW_LINK])
            await pause(choices.seconds(0.5, 3))
            wire.bytes_per_second = None

        async def set_clock(choices: Choices) -> None:
            environment.step = choices.one(STEPS)
            with client(server.url) as connection:
                redis_clock.set_clock(connection, environment.step)
                await pause(choices.seconds(0.5, 3))
                redis_clock.set_clock(connection, 0)

        async def full_memory(choices: Choices) -> None:
            """The server refuses writes that need memory."""
            with client(server.url) as connection:
                connection.config_set("maxmemory", 1)
                await pause(choices.seconds(0.2, 3))
                connection.config_set("maxmemory", 0)

        async def full_disk(choices: Choices) -> None:
            """A write to the log is cut off, and the server ends. Later there is room again."""
            log = max(path.stat().st_size for path in server.directory.rglob("*.aof*"))
            _limit_files([server.pid], log + choices.number(2_000))
            await pause(choices.seconds(0.5, 3))
            await asyncio.to_thread(server.restart)

        environment.faults = {
            "server killed": restart, "clients killed": kill_clients, "connections cut": cut,
            "connections refused": refuse, "black hole": stall, "replies lost": lose_replies,
            "slow link": slow, "replica promoted": promote, "server clock set": set_clock,
            "full memory": full_memory, "full disk": full_disk,
        }  # fmt: skip
        yield environment


async def _redis_server(stack: AsyncExitStack) -> tuple[RedisServer, int]:
    """Start a server whose writes are on disk when they are acknowledged. Return its port, for replicas."""
    port = free_port()
    settings = {"appendonly": "yes", "appendfsync": "always", "port": str(port)}
    return await stack.enter_async_context(running_server(**settings)), port


STATUSES = (b"404 Not Found", b"409 Conflict", b"500 Internal Server Error", b"503 Slow Down")


@asynccontextmanager
async def slatedb(folder: Path) -> AsyncIterator[Environment]:
    """A bucket of a server in another process, behind a proxy."""
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    async with AsyncExitStack() as stack:
        bucket = await asyncio.to_thread(Server)
        stack.push_async_callback(asyncio.to_thread, bucket.close)
        bucket.make_bucket()
        wire = await stack.enter_async_context(proxying(bucket.port))
        url = f"s3://{BUCKET}/chaos?endpoint={wire.endpoint}&flush_ms=20&timeout={TIMEOUT}"
        environment = Environment("slatedb", url, single=True)
        environment.take_over = f"{url}&takeover=1"

        async def errors(choices: Choices) -> None:
            wire.failing = choices.one(STATUSES)
            some = choices.one([1.0, 0.5, 0.2])
            wire.fails = lambda method, path: choices.chance(some)
            await pause(choices.seconds(0.2, TIMEOUT + 1))
            wire.failing = None

        async def slow(choices: Choices) -> None:
            wire.latency = choices.seconds(0.1, 1)
            await pause(choices.seconds(0.5, 4))
            wire.latency = 0

        async def silent(choices: Choices) -> None:
            """Requests of this time get no answer before the caller gives up."""
            wire.latency = 2.0 * TIMEOUT
            await pause(choices.seconds(0.2, TIMEOUT))
            wire.latency = 0

        async def full(choices: Choices) -> None:
            """The store has no room for new objects."""
            wire.failing = b"507 Insufficient Storage"
            wire.fails = lambda method, path: method == "PUT"
            await pause(choices.seconds(0.2, TIMEOUT + 1))
            wire.failing = None

        environment.faults = {
            "store errors": errors, "slow store": slow, "silent store": silent, "full store": full,
        }  # fmt: skip
        try:
            yield environment
        finally:
            wire.failing, wire.latency = None, 0
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@asynccontextmanager
async def slatedb_folder(folder: Path) -> AsyncIterator[Environment]:
    """A folder of the host."""
    url = f"file://{folder}/jobs?flush_ms=20&timeout={TIMEOUT}"
    environment = Environment("slatedb", url, single=True)
    environment.take_over = f"{url}&takeover=1"
    yield environment


ENVIRONMENTS: dict[str, Any] = {
    "memory": memory, "sqlite": sqlite, "postgres": postgres, "redis": redis, "slatedb": slatedb,
}  # fmt: skip
