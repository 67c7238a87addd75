"""What a measure gets to work with, and the list of all measures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from benchmarks.findings import Finding
from benchmarks.screen import Screen
from benchmarks.server import Server, start_server
from benchmarks.side import Side
from tests.support.servers.redis import Server as RedisServer

ENGINES = ("sqlite", "memory", "postgres", "redis", "slatedb")


class Run:
    """One run: how large it is, where its files are, and the sides that measures share."""

    def __init__(self, screen: Screen, folder: Path, *, quick: bool) -> None:
        self.screen = screen
        self.quick = quick
        self._folder = folder
        self._files = 0
        self._sides: dict[str, Side] = {}
        self._server: Server | None = None
        self._redis: RedisServer | None = None

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def url(self, engine: str) -> str:
        """A new, empty store."""
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
        """The Redis server of this run, for us and for the peers."""
        if self._redis is None:
            folder = self._folder / "redis"
            folder.mkdir()
            self._redis = RedisServer(folder).start()
        return self._redis

    def file(self, name: str) -> str:
        """The path of a new file."""
        self._files += 1
        return f"{self._folder}/{self._files}-{name}.db"

    def folder(self, name: str) -> Path:
        """The path of a new folder, not yet made."""
        self._files += 1
        return self._folder / f"{self._files}-{name}"

    @property
    def server(self) -> Server:
        """The PostgreSQL server, started on first use."""
        if self._server is None:
            self._server = start_server(self._folder)
        return self._server

    def servers(self) -> list[str]:
        """The servers that were started, by name and version."""
        return [] if self._server is None else [self._server.version()]

    async def in_turn(
        self, text: str, rounds: int, *sides: Callable[[], Awaitable[float]]
    ) -> list[list[float]]:
        """Let each side do its piece of work in every round; what each said, round by round.

        A first round warms up and does not count.
        """
        said: list[list[float]] = [[] for _ in sides]
        with self.screen.stage(text, rounds + 1) as advance:
            for turn in range(rounds + 1):
                for side, values in zip(sides, said, strict=True):
                    value = await side()
                    if turn > 0:
                        values.append(value)
                advance(1)
        return said

    def shared_side(self, name: str, make: Callable[[], Side]) -> Side:
        """A side that took long to make, kept for the other measures of the same engine."""
        if name not in self._sides:
            self._sides[name] = make()
        return self._sides[name]

    def close_sides(self) -> None:
        """Let go of what measures share: their duties, and the server's, would weigh on those that don't."""
        while self._sides:
            self._sides.popitem()[1].close()
        if self._server is not None:
            self._server.clear()

    def close(self) -> None:
        self.close_sides()
        if self._server is not None:
            self._server.close()
        if self._redis is not None:
            self._redis.stop()


@contextmanager
def new_run(*, quick: bool) -> Iterator[Run]:
    with TemporaryDirectory(prefix="dayjob-benchmarks-") as folder:
        run = Run(Screen(), Path(folder), quick=quick)
        try:
            yield run
        finally:
            run.close()


Function = Callable[[Run, str], Coroutine[Any, Any, Sequence[Finding]]]


class Measure(Struct, frozen=True):
    """A named measure and the engines that it is about (none: it is about no engine)."""

    name: str
    about: str
    engines: tuple[str, ...]
    function: Function


MEASURES: dict[str, Measure] = {}


def measure(name: str, *engines: str) -> Callable[[Function], Function]:
    """Register a measure; the first line of its docstring says what it is about."""

    def register(function: Function) -> Function:
        about = (function.__doc__ or "").partition("\n")[0]
        MEASURES[name] = Measure(name, about, engines, function)
        return function

    return register
