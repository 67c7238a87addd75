"""An open database: pool, statements, notifier and counters, and the ways to run a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
from msgspec import Struct

from dayjob.engines.base import Token, Transient
from dayjob.engines.postgres.counters import Counters
from dayjob.engines.postgres.errors import token_is_stored
from dayjob.engines.postgres.notifier import Notifier
from dayjob.engines.postgres.pool import Connection, Pool, Reply, Work
from dayjob.engines.postgres.statements import Statements
from dayjob.runtime import ids


class Database(Struct, frozen=True):
    """The parts that every verb uses."""

    pool: Pool
    statements: Statements
    notifier: Notifier
    counters: Counters

    async def close(self) -> None:
        await self.counters.close()
        await self.notifier.close()
        await self.pool.close()

    async def read(self, work: Work[Reply]) -> Reply:
        """Run work that changes nothing, or whose repetition is harmless."""
        await self.notifier.ready()
        return await self.pool.run(work)

    async def fetch(self, name: str, *parameters: Any) -> list[Any]:
        """Return the rows of a statement that changes nothing, or whose repetition is harmless."""

        async def fetch(connection: Connection) -> list[Any]:
            return await connection.fetch(self.statements[name], *parameters)

        return await self.read(fetch)

    async def write(
        self,
        token: Token | None,
        key: bytes,
        work: Work[Reply],
        decode: Callable[[Any], Reply],
        *,
        wait_for_locks: bool = True,
    ) -> Reply:
        """Run work that stores its reply under the key. A repeated write looks for the stored reply first.

        ``decode`` makes the result from a stored reply.
        """
        self.counters.row_written()

        async def repeat(connection: Connection) -> Reply:
            stored = await connection.fetchrow(self.statements["stored_reply"], key)
            return await work(connection) if stored is None else decode(stored[0])

        repeated = token is not None and token.repeated
        try:
            return await self.pool.run(repeat if repeated else work, wait_for_locks=wait_for_locks)
        except asyncpg.UniqueViolationError as error:
            if not token_is_stored(error):
                raise
        return await self.pool.run(repeat)  # The first try was still under way, and has committed.

    async def execute(self, name: str, token: Token | None, *parameters: Any, part: int = 0) -> list[str]:
        """Run a statement that stores its reply under the token. Return that reply."""
        key = token_key(token, part)

        async def run(connection: Connection) -> list[str]:
            reply: list[str] | None = await connection.fetchval(self.statements[name], key, *parameters)
            return reply or []

        return await self.write(token, key, run, list)


def token_key(token: Token | None, part: int = 0) -> bytes:
    """Return the key of a token, or of a part of its write that is a commit of its own."""
    if token is None:
        return ids.new_key()
    return (
        token.key
        if part == 0
        else ids.derived_key(int.from_bytes(token.key[:6]), b"%b%d" % (token.key, part))
    )


@contextmanager
def later_commit() -> Iterator[None]:
    """Around a commit of a write that has made another before: the repetition must look for both."""
    try:
        yield
    except Transient as error:
        raise Transient(str(error), commit_unknown=True) from error.__cause__
