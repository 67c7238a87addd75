"""The idle connections of a pool: those that were not needed for a while are closed, but one."""

from __future__ import annotations

from dayjob.engines.idle_connections import IdleConnections
from tests.support.workers import until


async def test_connections_that_were_not_needed_are_closed_but_one() -> None:
    closed: list[int] = []

    async def close(connection: int) -> None:
        closed.append(connection)

    idle = IdleConnections(close)
    for connection in range(5):
        idle.push(connection)
    idle.trim()  # From now on, the fewest connections without work count.
    await until(lambda: closed == [0, 1])
    in_use = [idle.pop(), idle.pop()]
    assert in_use == [4, 3], "the last one is used first"
    for connection in in_use:
        idle.push(connection)
    idle.trim()
    await until(lambda: closed == [0, 1, 2])
    assert idle._stack == [4, 3], "two were needed"
    idle.trim()
    idle.trim()
    await until(lambda: closed == [0, 1, 2, 4])
    assert idle._stack == [3], "an idle process has heartbeats to store"
    await idle.close()
    assert closed == [0, 1, 2, 4, 3]
    idle.trim()
    assert not idle
