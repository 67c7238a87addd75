"""Connections to the server, one try per call, and the classification of errors.

A temporary failure is raised as ``Transient``: a lost connection, a failover, a busy server. Connections are
opened on demand.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
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

from dayjob.engines.base import Insertion, Token, Transient
from dayjob.engines.connect_limit import connect_limit
from dayjob.engines.idle_connections import IdleConnections
from dayjob.engines.redis.arguments import PlainInsert
from dayjob.engines.redis.connection import Connection
from dayjob.engines.redis.scripts import script
from dayjob.engines.redis.settings import RedisSettings
from dayjob.errors import Closed, ConfigError, EngineUnavailable
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM

SILENCE = 5.0
"""Seconds in which a try neither sends nor receives data, after which it fails."""

_REPLIES_KEPT = 600.0
"""Seconds for which the server keeps the reply of a write after the last try of it may have begun."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0

_TRANSIENT = (ReadOnlyError, TryAgainError, ClusterDownError, AskError)
_TRANSIENT_CODES = re.compile(
    r"(?:^|[ -])(?:READONLY|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|BUSY|MISCONF|NOREPLICAS|ASK) "
)
"""Temporary errors: a failover, a slow script, a full disk.

The driver raises those of a restart as lost connections. An error inside a script has its code in the text.
"""

_MOVED = re.compile(r"MOVED \d+ (.*):(\d+)$")

Command = Sequence[bytes | str | int]


class Client:
    """The engine's connections; each is used by one call at a time."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self.opening = True
        """While this is set, a refused user is an error of the configuration."""
        self.silence = min(SILENCE, settings.timeout)
        self._replies_kept = round((settings.timeout + _REPLIES_KEPT) * 1000)
        self._target: tuple[str, int] | None = None
        self._idle = IdleConnections(_close)
        self._busy: set[Connection] = set()
        self._heads: dict[str, bytes] = {}
        """The packed start of the calls of each verb's script."""
        self._plain_insert: PlainInsert | None = None
        self._closed = False
        self._closer = asyncio.get_running_loop().create_task(
            self._close_at_end(), name="dayjob redis connections"
        )

    async def _close_at_end(self) -> None:
        """Close the connections when the client is closed, or when the event loop ends before that."""
        try:
            await asyncio.Event().wait()
        finally:
            self._closed = True
            for connection in (*self._idle.clear(), *self._busy):
                connection.close()

    async def close(self) -> None:
        self._closed = True
        if not self._closer.done() and not self._closer.get_loop().is_closed():
            self._closer.cancel()
            await asyncio.wait({self._closer})

    async def execute(self, *commands: Command, silence: float | None = None) -> list[Any]:
        """Send the commands together, once, and return the replies."""
        return await self.send([packed(command) for command in commands], silence or self.silence)

    async def send(self, requests: Sequence[bytes], silence: float) -> list[Any]:
        """Send packed commands together, once, and return the replies."""
        if self._closed:
            raise Closed(f"{self.settings.shown}: the engine is closed")
        if self._idle:
            connection = self._idle.pop()
        else:
            try:
                connection = await self.open(silence)
            except (OSError, RedisError) as error:
                raise self._classified(error, written=False) from error
        self._busy.add(connection)
        usable = False
        try:
            replies = await connection.call(requests, silence)
            usable = True
            for reply in replies:
                if isinstance(reply, ResponseError):
                    usable = isinstance(reply, NoScriptError | OutOfMemoryError)
                    raise reply
            return replies
        except NoScriptError:
            raise
        except (OSError, RedisError) as error:
            raise self._classified(error, written=True) from error
        finally:
            self._busy.discard(connection)
            if usable and not self._closed:
                self._idle.push(connection)
            else:
                connection.close()

    async def open(self, silence: float) -> Connection:
        """Return a new connection, within so many seconds."""
        driver = self.settings.connection(self._target)
        try:
            async with asyncio.timeout(silence):
                async with connect_limit(repr(driver)).attempt(OSError, LostConnection):
                    await driver.connect()  # type: ignore[no-untyped-call]
                return Connection(driver)
        except BaseException:
            await drop(driver)
            raise

    async def execute_retrying(self, *commands: Command, timeout: float) -> list[Any]:
        """``execute``, repeated after transient failures. For idempotent commands of the engine's own."""
        deadline = SYSTEM.elapsed() + timeout
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        cause: Transient | None = None
        while True:
            try:
                return await self.execute(*commands, silence=min(timeout, self.silence))
            except Transient as error:
                if cause is None or not isinstance(error.__cause__, TimeoutError):
                    cause = error  # A timeout explains less than any other failure.
            left = deadline - SYSTEM.elapsed()
            if left <= 0:
                raise cause
            await backoff.wait(SYSTEM, at_most=left)

    async def run(self, verb: str, reply: bytes, arguments: Command, *, in_full: bool = False) -> Any:
        """Return the reply of the verb's script. ``reply`` is the key at which the script stores it.

        ``in_full`` sends the script: the server is known to lack it.
        """
        if not in_full:
            with suppress(NoScriptError):
                return (await self.send((self._request(verb, reply, arguments),), self.silence))[0]
        keys = (*self.settings.keys.fixed, reply)
        return (await self.execute(("EVAL", script(verb).source, len(keys), *keys, *arguments)))[0]

    async def insert_plain(self, job: Insertion, token: Token) -> Any:
        """Return the reply of ``insert`` for a plain job. Raise ``NoScriptError`` if the server lacks it."""
        if self._plain_insert is None:
            self._plain_insert = PlainInsert(self.settings.keys, script("insert").digest, self._replies_kept)
        return (await self.send((self._plain_insert.request(job, token),), self.silence))[0]

    def _request(self, verb: str, reply: bytes, arguments: Command) -> bytes:
        """Return the packed call of a script. The part that all calls of the verb share is packed once."""
        fixed = self.settings.keys.fixed
        head = self._heads.get(verb)
        if head is None:
            start = packed(("EVALSHA", script(verb).digest, len(fixed) + 1, *fixed))
            head = self._heads[verb] = start[start.index(b"\n") + 1 :]
        rest = packed((reply, *arguments))
        count = b"*%d\r\n" % (len(fixed) + len(arguments) + 4)
        return b"".join((count, head, memoryview(rest)[rest.index(b"\n") + 1 :]))

    async def run_idempotent(self, verb: str, *arguments: bytes | str | int, now: int | None = None) -> Any:
        """Return the reply of a script that stores no reply, since a repetition changes nothing."""
        return await self.run(verb, self.settings.keys.reply(b"", 0), (*self.script_head(now), *arguments))

    def script_head(
        self, now: int | None, number: int = 0, step: int = 0, key: bytes = b""
    ) -> tuple[bytes | str | int, ...]:
        """Return the first arguments of every script; see ``lua/shared/1_keys.lua``."""
        keys = self.settings.keys
        return ("" if now is None else now, keys.changes, keys.ends, number, step, key, self._replies_kept)

    def _classified(self, error: Exception, written: bool) -> EngineUnavailable | ConfigError:
        """Return the error to raise. After ``MOVED`` the next try goes to the node that the server named."""
        text = described(error)
        if isinstance(error, AuthenticationError | NoPermissionError):
            refusal = ConfigError if self.opening else EngineUnavailable
            return refusal(
                f"{self.settings.shown}: the server refuses this user ({text}): "
                "check name, password and rights"
            )
        if isinstance(error, OutOfMemoryError) or "OOM command" in text:
            return EngineUnavailable(
                f"{self.settings.shown}: the server's memory is full: nothing was changed; "
                "raise maxmemory or remove jobs, then try again"
            )
        refused = isinstance(error, ResponseError)
        moved = _MOVED.match(text)
        if moved and "host" in self.settings.options:
            self._target = (moved[1] or self.settings.options["host"], int(moved[2]))
            self._drop_idle()
        elif refused and not (isinstance(error, _TRANSIENT) or _TRANSIENT_CODES.search(text)):
            return EngineUnavailable(f"{self.settings.shown}: the server refused the call ({text})")
        if isinstance(error, LostConnection | OSError):
            self._target = None
            self._drop_idle()
        return Transient(
            f"{self.settings.shown}: no reply ({text}): check that the server runs and can be reached, "
            "then try again",
            commit_unknown=written and not refused,
        )

    def _drop_idle(self) -> None:
        """Close the idle connections: they lead to a server that has ended, or to the wrong node."""
        for connection in self._idle.clear():
            connection.close()


def packed(command: Command) -> bytes:
    request: bytes = pack_command(command if type(command) is tuple else tuple(command))  # type: ignore[arg-type]
    return request


def described(error: Exception) -> str:
    """Return the text of an error with its code, which the driver removes from some."""
    code = getattr(error, "status_code", None)
    text = str(error) or type(error).__name__
    return f"{code} {text}" if isinstance(code, str) else text


async def _close(connection: Connection) -> None:
    connection.close()


async def drop(connection: AbstractConnection) -> None:
    """Close a connection of the driver without waiting for the server, on whichever loop it was opened."""
    with suppress(RedisError, OSError, RuntimeError):
        if connection._writer is not None:
            connection._writer.transport.abort()  # A TLS shutdown would wait for the server.
        await connection.disconnect(nowait=True)
