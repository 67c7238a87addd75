"""The connections that an application may pass, each with an open transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool


@dataclass
class Caller:
    """An application in the middle of a transaction."""

    connection: Any
    execute: Callable[[str], Awaitable[object]]
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]


Driver = Callable[[str], AbstractAsyncContextManager[Caller]]


def _awaited(call: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    async def called(*arguments: object) -> object:
        return call(*arguments)

    return called


def with_driver(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


# The drivers themselves.


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as connection:
        connection.execute("SELECT 1")
        yield _sync(connection, connection.execute)


@asynccontextmanager
async def _psycopg_with_dict_rows(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield _sync(connection, connection.execute)


@asynccontextmanager
async def _psycopg_autocommit(url: str) -> AsyncIterator[Caller]:
    """The caller begins its transactions itself."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("BEGIN")
        yield _sync(connection, connection.execute)


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Caller(connection, connection.execute, connection.commit, connection.rollback)


@asynccontextmanager
async def _psycopg_async_with_dict_rows(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, row_factory=dict_row) as connection:
        yield Caller(connection, connection.execute, connection.commit, connection.rollback)


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Caller(connection, connection.execute, transaction.commit, transaction.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pooled(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, connection.execute, transaction.commit, transaction.rollback)


# SQLAlchemy.


def _sync(connection: Any, execute: Callable[..., object]) -> Caller:
    return Caller(connection, _awaited(execute), _awaited(connection.commit), _awaited(connection.rollback))


@asynccontextmanager
async def _sqlalchemy_session(url: str) -> AsyncIterator[Caller]:
    engine = create_engine(with_driver(url, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        yield _sync(session, lambda sql: session.execute(text(sql)))


@asynccontextmanager
async def _sqlalchemy_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = create_engine(with_driver(url, "psycopg"), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    try:
        yield _sync(session, lambda sql: session.execute(text(sql)))
    finally:
        session.remove()


@asynccontextmanager
async def _sqlalchemy_connection(url: str) -> AsyncIterator[Caller]:
    engine = create_engine(with_driver(url, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield _sync(connection, lambda sql: connection.execute(text(sql)))


def _sqlalchemy_async_session(driver: str) -> Driver:
    @asynccontextmanager
    async def open_session(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(with_driver(url, driver), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            yield Caller(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)

    return open_session


@asynccontextmanager
async def _sqlalchemy_async_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(with_driver(url, "asyncpg"), poolclass=NullPool)
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    try:
        yield Caller(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
    finally:
        await session.remove()


def _sqlalchemy_async_connection(driver: str) -> Driver:
    @asynccontextmanager
    async def open_connection(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(with_driver(url, driver), poolclass=NullPool)
        async with engine.connect() as connection:
            yield Caller(
                connection,
                lambda sql: connection.execute(text(sql)),
                connection.commit,
                connection.rollback,
            )

    return open_connection


SYNC: dict[str, Driver] = {
    "psycopg": _psycopg,
    "psycopg with dict rows": _psycopg_with_dict_rows,
    "psycopg in autocommit": _psycopg_autocommit,
    "sqlalchemy Session": _sqlalchemy_session,
    "sqlalchemy scoped_session": _sqlalchemy_scoped_session,
    "sqlalchemy Connection": _sqlalchemy_connection,
}

ASYNC: dict[str, Driver] = {
    "psycopg async": _psycopg_async,
    "psycopg async with dict rows": _psycopg_async_with_dict_rows,
    "asyncpg": _asyncpg,
    "asyncpg from a pool": _asyncpg_pooled,
    "sqlalchemy AsyncSession on asyncpg": _sqlalchemy_async_session("asyncpg"),
    "sqlalchemy AsyncSession on psycopg": _sqlalchemy_async_session("psycopg"),
    "sqlalchemy async_scoped_session": _sqlalchemy_async_scoped_session,
    "sqlalchemy AsyncConnection on asyncpg": _sqlalchemy_async_connection("asyncpg"),
    "sqlalchemy AsyncConnection on psycopg": _sqlalchemy_async_connection("psycopg"),
}

DRIVERS = {**SYNC, **ASYNC}
