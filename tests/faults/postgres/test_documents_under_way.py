"""A document write under way when its connection broke: the retry waits for it and gets its reply."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from psycopg import AsyncConnection

from dayjob import Broker, BrokerConfig
from dayjob.engines.base import DocumentWrite
from dayjob.engines.postgres import pool
from tests.support.servers.postgres import schema_of, server_url
from tests.support.servers.postgres_proxy import Proxy
from tests.support.workers import until

QUIET = BrokerConfig(duties=False)

SLOW = """
CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_sleep(0.7); RETURN NULL; END $$;
CREATE TRIGGER slow AFTER INSERT OR UPDATE ON {schema}.documents
    FOR EACH ROW EXECUTE FUNCTION {schema}.slow();
"""
"""A write of a document takes a while near the end of its statement."""


async def test_a_retry_during_the_first_try_gets_the_reply_of_the_first(
    wire: Proxy, url: str, direct_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try waits for the first inside its statement, and finds the document changed."""
    monkeypatch.setitem(pool.SESSION_SETTINGS, "lock_timeout", "30s")
    schema = schema_of(tmp_path)
    async with (
        Broker(direct_url, config=QUIET) as other,
        Broker(url, config=QUIET) as broker,
        await AsyncConnection.connect(server_url(), autocommit=True) as console,
    ):
        storage = broker._session.storage
        await console.execute(SLOW.format(schema=schema))

        async def it_sleeps() -> bool:
            found = await console.execute(
                "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE %s",
                [f"%{schema}%"],
            )
            return bool(await found.fetchall())

        for expected, value in ((None, b"1"), (b"1", b"2")):
            writing = asyncio.create_task(storage.compare_and_set([DocumentWrite("k", "a", expected, value)]))
            await until(it_sleeps)
            wire.cut()
            assert await writing
            assert [document.value for document in (await other._engine.documents("k"))[1]] == [value]
