"""The context of a measure, and the registry of all measures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from benchmarks.peers.node import Node, install
from benchmarks.progress import ProgressDisplay
from benchmarks.results import Result
from benchmarks.server import Server, start_server
from benchmarks.store_process import StoreProcess
from tests.support.servers.redis import Server as RedisServer

ENGINES = ("sqlite", "memory", "postgres", "redis", "slatedb")


class Run:
    """One run: its size, its files, its servers, and the stores that measures share."""

    def __init__(self, progress: ProgressDisplay, folder: Path, *, quick: bool) -> None:
        self.progress = progress
        self.quick = quick
        self._folder = folder
        self._files = 0
        self._stores: dict[str, StoreProcess] = {}
        self._server: Server | None = None
        self._redis: RedisServer | None = None
        self._node: Node | None = None

    @property
    def root(self) -> Path:
        """The folder of all files and servers of this run."""
        return self._folder

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def url(self, engine: str) -> str:
        """Return the URL of a new, empty store."""
        self._files += 1
        if engine == "memory":
            return f"memory://bench-{self._files}"
        if engine == "redis":
            return f"{self.redis().url}?prefix=bench-{self._files}"
        if engine == "postgres":
            return self.server.new_database()
        if engine == "slatedb":
            return f"file://{self._folder}/{self._files}"
        return f"sqlite:///{self._folder}/{self._files}.db"

    def redis(self) -> RedisServer:
        """Return the Redis server of this run, which dayjob and its peers share."""
        if self._redis is None:
            folder = self._folder / "redis"
            folder.mkdir()
            self._redis = RedisServer(folder).start()
        return self._redis

    def node(self) -> Node:
        """Return the peers that run in Node, installed on first use. Raise ``Missing`` without npm."""
        if self._node is None:
            self._node = install(self.folder("node"))
        return self._node

    def file(self, name: str) -> str:
        """Return the path of a new file."""
        self._files += 1
        return f"{self._folder}/{self._files}-{name}.db"

    def folder(self, name: str) -> Path:
        """Return the path of a new folder, which does not exist yet."""
        self._files += 1
        return self._folder / f"{self._files}-{name}"

    @property
    def server(self) -> Server:
        """The PostgreSQL server, started on first use."""
        if self._server is None:
            self._server = start_server(self._folder)
        return self._server

    def servers(self) -> list[str]:
        """Return the started servers by name and version."""
        return [] if self._server is None else [self._server.version()]

    async def in_turn(
        self, text: str, rounds: int, *variants: Callable[[], Awaitable[float]]
    ) -> list[list[float]]:
        """Run each variant once per round, and return their values by variant.

        The first round warms up and is not counted.
        """
        measured: list[list[float]] = [[] for _ in variants]
        with self.progress.stage(text, rounds + 1) as advance:
            for turn in range(rounds + 1):
                for variant, values in zip(variants, measured, strict=True):
                    value = await variant()
                    if turn > 0:
                        values.append(value)
                advance(1)
        return measured

    def shared_store(self, name: str, make: Callable[[], StoreProcess]) -> StoreProcess:
        """Return a store that is slow to fill, shared by the measures of one engine."""
        if name not in self._stores:
            self._stores[name] = make()
        return self._stores[name]

    def close_stores(self) -> None:
        """Close the shared stores, because their duties and autovacuum would slow down other measures."""
        while self._stores:
            self._stores.popitem()[1].close()
        if self._server is not None:
            self._server.clear()

    def close(self) -> None:
        self.close_stores()
        if self._server is not None:
            self._server.close()
        if self._redis is not None:
            self._redis.stop()


@contextmanager
def new_run(*, quick: bool) -> Iterator[Run]:
    with TemporaryDirectory(prefix="dayjob-benchmarks-") as folder:
        run = Run(ProgressDisplay(), Path(folder), quick=quick)
        try:
            yield run
        finally:
            run.close()


Function = Callable[[Run, str], Coroutine[Any, Any, Sequence[Result]]]


class Measure(Struct, frozen=True):
    """A named measure and its engines, if it depends on any."""

    name: str
    description: str
    engines: tuple[str, ...]
    function: Function


MEASURES: dict[str, Measure] = {}


def measure(name: str, *engines: str) -> Callable[[Function], Function]:
    """Register a measure. The first line of its docstring is its description."""

    def register(function: Function) -> Function:
        description = (function.__doc__ or "").partition("\n")[0]
        MEASURES[name] = Measure(name, description, engines, function)
        return function

    return register
