"""Talking to the server: a few connections, and patience with outages.

A command that meets an outage is sent again until it is answered or the patience is over; what it changes is
safe to send again because scripts know their calls by token. Connections are opened when they are needed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection

from dayjob.engines.redis.place import Place
from dayjob.engines.redis.scripts import script
from dayjob.errors import Closed, ConfigError, EngineUnavailable
from dayjob.runtime import entropy
from dayjob.runtime.clock import SYSTEM

_LONGEST_TRY = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_PASSING = (ReadOnlyError, TryAgainError, ClusterDownError, AskError)
_PASSING_CODES = re.compile(
    r"(?:^|[ -])(?:READONLY|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|BUSY|MISCONF|NOREPLICAS|ASK) "
)
"""Errors that end by themselves: a failover, a slow script, a disk that gets room again.

Those of a restart are lost connections to the driver. An error within a script has its code in the text.
"""

_MOVED = re.compile(r"MOVED \d+ (.*):(\d+)$")

Command = Sequence[bytes | str | int]


class Link:
    """The engine's connections; each is used by one call at a time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.opening = True
        """Until it was used with success, what the server refuses is taken for a matter of configuration."""
        self._target: tuple[str, int] | None = None
        self._idle: list[AbstractConnection] = []
        self._busy: set[AbstractConnection] = set()
        self._closed = False
        self._guard = asyncio.get_running_loop().create_task(self._serve(), name="dayjob redis connections")

    async def _serve(self) -> None:
        """Close the connections when we are closed, or when the event loop ends before that."""
        try:
            await asyncio.Event().wait()
        finally:
            self._closed = True
            for connection in (*self._idle, *self._busy):
                await drop(connection)
            self._idle.clear()

    def connection(self) -> AbstractConnection:
        return self.place.connection(self._target)

    async def close(self) -> None:
        self._closed = True
        if not self._guard.done() and not self._guard.get_loop().is_closed():
            self._guard.cancel()
            await asyncio.wait({self._guard})

    async def ask(self, *commands: Command, patience: float | None = None) -> list[Any]:
        """The answers to the commands, sent together."""
        patience = self.place.patience if patience is None else patience
        deadline = SYSTEM.elapsed() + patience
        pause = 0.0
        cause: Exception | None = None
        while True:
            left = deadline - SYSTEM.elapsed()
            try:
                async with asyncio.timeout(min(max(left, 0.05), _LONGEST_TRY)):
                    return await self._ask(commands)
            except (OSError, RedisError) as error:
                self._check(error)
                if cause is None or not isinstance(error, TimeoutError):
                    cause = error  # That a last try was cut short says less than why there were others.
            left = deadline - SYSTEM.elapsed()
            if left <= 0:
                raise EngineUnavailable(
                    f"{self.place.shown}: no answer for {patience:g} s ({_described(cause)}): "
                    "check that the server runs and can be reached, then try again"
                ) from cause
            await SYSTEM.wait(asyncio.Event(), min(pause * (0.5 + entropy.fraction()), left))
            pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)

    async def run(self, verb: str, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]) -> Any:
        """The answer of the verb's script."""
        found = script(verb)
        tail = (len(keys), *keys, *arguments)
        try:
            return (await self.ask(("EVALSHA", found.digest, *tail)))[0]
        except NoScriptError:
            return (await self.ask(("EVAL", found.source, *tail)))[0]

    async def tend(self, verb: str, *arguments: bytes | str | int) -> Any:
        """The answer of a script that does no harm when it is repeated, and so keeps no answer."""
        keys = self.place.keys
        head = ("", keys.news, keys.ends, 0)
        return await self.run(verb, (*keys.fixed, keys.answer("mend", 0)), (*head, *arguments))

    def begin(self, command: Command) -> Coroutine[Any, Any, list[Any]]:
        """``ask``; what can be is on the wire when this returns, before anybody else gets a turn."""
        if self._idle:
            writer = self._idle[-1]._writer
            if writer is not None and not writer.is_closing():
                connection = self._idle.pop()
                self._busy.add(connection)
                writer.write(pack_command(tuple(command)))  # type: ignore[arg-type]
                return self._finish(connection, command)
        return self.ask(command)

    async def _finish(self, connection: AbstractConnection, command: Command) -> list[Any]:
        try:
            async with asyncio.timeout(_LONGEST_TRY):
                return await self._receive(connection, 1)
        except (OSError, RedisError):
            return await self.ask(command)

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        if self._closed:
            raise Closed(f"{self.place.shown}: the engine is closed")
        connection = self._idle.pop() if self._idle else self.connection()
        self._busy.add(connection)
        sent = False
        try:
            await connection.send_packed_command(
                [pack_command(tuple(command)) for command in commands]  # type: ignore[arg-type]
            )
            sent = True
        finally:
            if not sent:
                self._busy.discard(connection)
                await drop(connection)
        return await self._receive(connection, len(commands))

    async def _receive(self, connection: AbstractConnection, count: int) -> list[Any]:
        """The answers to so many commands; after that the connection is anybody's again."""
        usable = False
        try:
            answers: list[Any] = []
            failure: ResponseError | None = None
            for _ in range(count):
                try:
                    answers.append(await connection.read_response())
                except ResponseError as error:
                    failure = failure or error
            usable = failure is None or isinstance(failure, NoScriptError | OutOfMemoryError)
            if failure is not None:
                raise failure
            return answers
        finally:
            self._busy.discard(connection)
            if usable and not self._closed:
                self._idle.append(connection)
            else:
                await drop(connection)

    def _check(self, error: Exception) -> None:
        """Raise what no patience can mend; follow where the server points."""
        text = _described(error)
        if isinstance(error, NoScriptError):
            raise error
        if isinstance(error, AuthenticationError | NoPermissionError):
            refusal = ConfigError if self.opening else EngineUnavailable
            raise refusal(
                f"{self.place.shown}: the server refuses this user ({text}): check name, password and rights"
            ) from error
        if isinstance(error, OutOfMemoryError) or "OOM command" in text:
            raise EngineUnavailable(
                f"{self.place.shown}: the server's memory is full: nothing was changed; "
                "raise maxmemory or remove jobs, then try again"
            ) from error
        moved = _MOVED.match(text)
        if moved and "host" in self.place.options:
            self._target = (moved[1] or self.place.options["host"], int(moved[2]))
            self._let_go()
        elif isinstance(error, ResponseError) and not (
            isinstance(error, _PASSING) or _PASSING_CODES.search(text)
        ):
            raise EngineUnavailable(
                f"{self.place.shown}: the server refused the call ({text}): nothing is known to have changed"
            ) from error
        if isinstance(error, LostConnection | OSError):
            self._target = None
            self._let_go()

    def _let_go(self) -> None:
        """Close what is idle: it leads to a server that is gone, or to another than we want."""
        for connection in self._idle:
            connection._close()  # type: ignore[no-untyped-call]
        self._idle.clear()


def _described(error: Exception) -> str:
    code = getattr(error, "status_code", None)
    text = str(error) or type(error).__name__
    return f"{code} {text}" if isinstance(code, str) else text


async def drop(connection: AbstractConnection) -> None:
    """Close a connection without waiting for the server, on whichever loop it was opened."""
    with suppress(RedisError, OSError, RuntimeError):
        if connection._writer is not None:
            connection._writer.transport.abort()  # TLS would wait for the other side to say goodbye
        await connection.disconnect(nowait=True)
