"""Large jobs over a slow link: batches are bounded by bytes, so no exchange outlasts its timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dayjob import App, Broker, BrokerConfig, Job
from tests.support.bound import BOUND
from tests.support.servers import postgres, redis
from tests.support.servers.slow_link import SlowLink
from tests.support.workers import until, with_timeout, working

pytestmark = pytest.mark.slow

LINK = 8_000_000
"""Bytes per second: ``JOBS`` together take longer than ``TIMEOUT``, a batch of 8 MiB does not."""

TIMEOUT = 6
JOBS = 60
SIZE = 1_000_000
QUIET = BrokerConfig(duties=False)


@asynccontextmanager
async def slow_url(engine: str, directory: Path) -> AsyncIterator[str]:
    if engine == "redis":
        async with redis.running_server() as server:
            link = SlowLink(lambda: asyncio.open_unix_connection(server.socket), LINK)
            async with link.open():
                yield f"redis://127.0.0.1:{link.port}/0?timeout={TIMEOUT}"
    else:
        parts = urlsplit(postgres.schema_url(directory))
        assert parts.hostname is not None
        host, port = parts.hostname, parts.port
        link = SlowLink(lambda: asyncio.open_connection(host, port), LINK)
        async with link.open():
            credentials = parts.netloc.rpartition("@")[0]
            slow = parts._replace(netloc=f"{credentials}@127.0.0.1:{link.port}").geturl()
            yield postgres.with_options(slow, timeout=str(TIMEOUT))


@pytest.mark.parametrize("engine", ["postgres", "redis"])
async def test_concurrent_large_enqueues_succeed_and_a_worker_runs_them(engine: str, tmp_path: Path) -> None:
    async with slow_url(engine, tmp_path) as url:
        async with Broker(url, config=QUIET) as broker:
            small = [broker.enqueue("small", b"%d" % number) for number in range(20)]
            large = [broker.enqueue("large", bytes(SIZE)) for _ in range(JOBS)]
            answers = await with_timeout(asyncio.gather(*large, *small), BOUND)
            assert all(answer.created for answer in answers)
        app = App(url)
        runs: list[int] = []

        @app.handler(queue="large")
        async def run(job: Job) -> None:
            runs.append(len(job.payload))

        async with app, working(app, queues=["large"], concurrency=100):
            await with_timeout(until(lambda: len(runs) == JOBS), BOUND)
            assert runs == [SIZE] * JOBS, "each ran once"
