"""A connection returns a reply for each command, fails after silence, and closes at unexpected data."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import InvalidResponse, ResponseError

from dayjob.engines.redis import connection as redis_connection
from dayjob.engines.redis.connection import Connection
from dayjob.runtime.clock import yield_to_loop
from tests.support.waiting import with_timeout

PING = b"*1\r\n$4\r\nPING\r\n"


class Transport:
    """Keeps the written data. A test plays the server by calling the protocol."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False
        self.protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def connected() -> tuple[Connection, Transport]:
    transport = Transport()
    driver = SimpleNamespace(_reader=None, _writer=SimpleNamespace(transport=transport))
    return Connection(cast(Any, driver)), transport


async def called(connection: Connection, *requests: bytes, silence: float = 60) -> asyncio.Task[list[Any]]:
    """Return a call whose requests are written."""
    call = asyncio.ensure_future(connection.call(requests or (PING,), silence))
    await yield_to_loop()
    return call


async def test_replies_may_arrive_in_any_pieces() -> None:
    connection, transport = connected()
    call = await called(connection, PING, PING)
    assert transport.written == PING + PING
    for piece in (b"+PO", b"NG\r\n$3\r", b"\nabc\r\n"):
        assert not call.done()
        connection.data_received(piece)
    assert await with_timeout(call) == [b"PONG", b"abc"]
    assert not connection.is_closed


async def test_an_error_reply_is_returned_and_the_other_replies_are_read() -> None:
    connection, _ = connected()
    call = await called(connection, PING, PING)
    connection.data_received(b"-ERR no\r\n+PONG\r\n")
    error, reply = await with_timeout(call)
    assert isinstance(error, ResponseError)
    assert reply == b"PONG"


async def test_a_server_that_is_not_ready_fails_the_call() -> None:
    connection, transport = connected()
    call = await called(connection, PING, PING)
    connection.data_received(b"-LOADING Redis is loading the dataset in memory\r\n")
    with pytest.raises(LostConnection, match="loading"):
        await with_timeout(call)
    assert transport.aborted


async def test_a_lost_connection_fails_the_call_and_every_later_one() -> None:
    connection, _ = connected()
    call = await called(connection)
    connection.connection_lost(None)
    for each in (call, await called(connection)):
        with pytest.raises(LostConnection, match="the server closed the connection"):
            await with_timeout(each)


async def test_a_reply_that_no_call_waits_for_closes_the_connection() -> None:
    """The next call would otherwise get it as its own."""
    connection, transport = connected()
    connection.data_received(b"+PONG\r\n")
    assert transport.aborted
    with pytest.raises(LostConnection):
        await with_timeout(await called(connection))


async def test_malformed_data_fails_the_call() -> None:
    connection, transport = connected()
    call = await called(connection)
    connection.data_received(b"no reply\r\n")
    with pytest.raises(InvalidResponse):
        await with_timeout(call)
    assert transport.aborted


async def test_a_call_without_data_fails_after_its_silence() -> None:
    connection, _ = connected()
    call = await called(connection, silence=60)
    connection.data_received(b"+PONG\r\n")
    await call  # The timer of this call is still set.
    with pytest.raises(TimeoutError):
        await with_timeout(await called(connection, silence=0.001))


async def test_each_piece_of_a_reply_restarts_the_time_limit() -> None:
    connection, _ = connected()
    call = await called(connection, silence=60)
    connection._deadline = 0  # as if the silence was over
    connection.data_received(b"+PO")
    connection._on_timer()
    connection.data_received(b"NG\r\n")
    assert await with_timeout(call) == [b"PONG"]
    connection.close()


async def test_a_long_request_waits_while_the_transport_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connection, "_PART", 4)
    connection, transport = connected()
    connection.pause_writing()
    call = await called(connection, b"12345678")
    assert transport.written == b"1234"
    connection.resume_writing()
    await yield_to_loop()
    assert transport.written == b"12345678"
    connection.data_received(b"+OK\r\n")
    assert await with_timeout(call) == [b"OK"]
    connection.close()


async def test_a_long_request_ends_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connection, "_PART", 4)
    connection, transport = connected()
    connection.pause_writing()
    call = await called(connection, b"12345678")
    connection.connection_lost(None)
    with pytest.raises(LostConnection):
        await with_timeout(call)
    assert transport.written == b"1234"


async def test_messages_behind_the_replies_of_a_subscription_are_received() -> None:
    """They arrive together, and a message that waited for more data would be a lost wake-up."""
    connection, _ = connected()
    messages: list[Any] = []
    connection.on_message = messages.append
    call = await called(connection, PING, PING)
    confirmed = b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
    message = b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n"
    connection.data_received(confirmed + message + confirmed + message)
    connection.data_received(message)
    assert len(await with_timeout(call)) == 2
    assert messages == [[b"message", b"a", b"x"]] * 3
