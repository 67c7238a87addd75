"""A worker that is killed during a hand-off delays the job by some seconds and costs no attempt."""

from __future__ import annotations

import asyncio
import os
from signal import SIGCONT, SIGKILL

import pytest

from dayjob import App, Broker, Worker
from dayjob.engines.redis.handoffs import Handoffs
from dayjob.model.codec import encode
from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND
from tests.support.processes import Child, Spawn, pause, send_to_test
from tests.support.servers.redis import client, running_server

pytestmark = pytest.mark.slow

PROMPT = 6.0
"""Seconds: two until the hand-off is revoked, one until the duty runs, and some for a busy machine."""


async def die_at_handoff(url: str) -> None:
    """Run a worker that kills itself when a hand-off arrives."""
    Handoffs.receive = lambda self, message: os.kill(os.getpid(), SIGKILL)  # type: ignore[method-assign]
    await _work(url)


async def run_once(url: str) -> None:
    """Run a worker that reports its runs."""
    await _work(url)


async def _work(url: str) -> None:
    app = App(url)

    @app.task(name="work", queue="q")
    async def work() -> None:
        send_to_test("ran")

    @app.task(name="die", queue="q")
    async def die() -> None:
        os.kill(os.getpid(), SIGKILL)

    @app.on("worker.started")
    async def started(event: object) -> None:
        send_to_test("ready")

    await Worker(app, queues=("q",)).run()


async def until_waiting(url: str) -> None:
    with client(url) as connection:
        deadline = SYSTEM.elapsed() + BOUND
        while connection.zcard("{dayjob}:waiting_claims") == 0:
            assert SYSTEM.elapsed() < deadline
            await pause(0.01)


async def run_a_first_job(broker: Broker, child: Child) -> None:
    """Let the worker get the server's time: from then on, it starts jobs before they are acknowledged."""
    await until_waiting(broker.url)
    await broker.enqueue("q", encode({}), task="work")
    assert await child.receive() == "ran"
    async with asyncio.timeout(BOUND):
        while (await broker.stats("q")).running:
            await pause(0.01)


async def test_a_job_that_kills_its_worker_after_a_handoff_has_had_its_attempt(spawn: Spawn) -> None:
    """It begins before the reply to the acknowledgment. Uncounted attempts would repeat for ever."""
    async with running_server() as server, Broker(server.url) as broker:
        child = await spawn(run_once, server.url)
        assert await child.receive() == "ready"
        await run_a_first_job(broker, child)
        await until_waiting(server.url)
        enqueued = await broker.enqueue("q", encode({}), task="die", max_attempts=1)
        assert (await broker.stats("q")).pending == 0
        await child.wait()
        async with asyncio.timeout(BOUND):
            while not (dead := await broker.dead_jobs("q")):  # by the broker's duty
                await pause(0.01)
        assert [(job.id, job.attempts, job.last_error) for job in dead] == [(enqueued.id, 1, "worker gone")]


async def test_a_job_handed_off_to_a_killed_worker_is_claimed_again_soon(spawn: Spawn) -> None:
    async with running_server() as server, Broker(server.url) as broker:
        child = await spawn(die_at_handoff, server.url)
        assert await child.receive() == "ready"
        await until_waiting(server.url)
        enqueued = await broker.enqueue("q", task="work", max_attempts=1)
        begun = SYSTEM.elapsed()
        await child.wait()
        [job] = await broker.claim("q", wait=20)
        assert SYSTEM.elapsed() - begun < PROMPT
        assert (job.id, job.attempts) == (enqueued.id, 1)
        await broker.ack(job)


async def test_a_job_handed_off_to_a_frozen_worker_runs_only_elsewhere(spawn: Spawn) -> None:
    async with running_server() as server, Broker(server.url) as broker:
        child = await spawn(run_once, server.url)
        assert await child.receive() == "ready"
        await run_a_first_job(broker, child)
        await until_waiting(server.url)
        await child.freeze()
        enqueued = await broker.enqueue("q", encode({}), task="work")
        begun = SYSTEM.elapsed()
        assert (await broker.stats("q")).running == 1
        [job] = await broker.claim("q", wait=20)
        assert SYSTEM.elapsed() - begun < PROMPT
        assert (job.id, job.attempts) == (enqueued.id, 1)
        child.signal(SIGCONT)
        await broker.ack(job)
        await broker.enqueue("q", encode({}), task="work")
        assert await child.receive() == "ran"
        child.signal(SIGKILL)
        assert (await child.wait()) != 0
        with pytest.raises(AssertionError, match="sent no more"):
            await child.receive()
