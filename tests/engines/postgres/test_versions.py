"""Every server version in the wheel. The whole suite runs on one of them, these tests on all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from dayjob import App, Broker, BrokerConfig, JobState, Retry, Worker
from dayjob.engines.postgres.statements import Statements
from tests.engines.postgres.test_plans import EXPECTED, sql_of
from tests.engines.postgres.verbs import use_every_verb
from tests.support.arrange import KEEP_ALL
from tests.support.servers.postgres_cluster import PROGRAMS
from tests.support.servers.private_postgres import PrivateServer, private_server
from tests.support.workers import with_timeout


@pytest.fixture(params=sorted(PROGRAMS))
async def server(request: pytest.FixtureRequest) -> AsyncIterator[PrivateServer]:
    async with private_server(request.param) as server:
        ((version,),) = await server.fetch("SHOW server_version_num")
        assert int(version) // 10_000 == int(request.param)
        yield server


async def test_every_statement_runs(server: PrivateServer) -> None:
    async with Broker(server.url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        await use_every_verb(broker)
    statements = Statements("dayjob")
    with psycopg.connect(server.url) as console:
        for name in EXPECTED:
            console.execute(f"PREPARE {name} AS {sql_of(statements, name)}".encode())


async def test_a_worker_runs_jobs_of_committed_transactions(server: PrivateServer) -> None:
    app = App(server.url)
    runs: list[int] = []

    @app.task(retry=Retry.fixed(attempts=2, delay=0))
    async def work(number: int) -> int:
        runs.append(number)
        if runs == [1]:
            raise ValueError("once more")
        return number

    async with app:
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            kept = await work.using(connection=connection).aenqueue(1)
            await connection.commit()
            dropped = await work.using(connection=connection).aenqueue(2)
            await connection.rollback()
        await with_timeout(Worker(app).run_until_idle())
        assert await kept.aresult(timeout=10) == 1
        assert runs == [1, 1]
        assert await kept.astatus() is JobState.DONE
        assert await dropped.astatus() is None
