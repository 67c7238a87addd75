"""A worker that is killed as a job is handed to it costs that job some seconds, and no attempt."""

from __future__ import annotations

import os
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from dayjob import App, Broker, Worker
from dayjob.engines.redis.seats import Seats
from dayjob.model.codec import encode
from dayjob.runtime.clock import SYSTEM
from tests.support.processes import Spawn, pause, say
from tests.support.servers.redis import client, running_server

pytestmark = pytest.mark.slow

PROMPT = 6.0
"""Seconds: three until it is taken back, one until that is looked for, and some for a busy machine."""


async def die_of_a_hand_over(url: str) -> None:
    """A worker that ends the moment a job arrives."""
    Seats.hear = lambda self, message: os.kill(os.getpid(), SIGKILL)  # type: ignore[method-assign]
    await _work(url)


async def run_once(url: str) -> None:
    """A worker that tells of its runs."""
    await _work(url)


async def _work(url: str) -> None:
    app = App(url)

    @app.task(name="work", queue="q")
    async def work() -> None:
        say("ran")

    @app.on("worker.started")
    async def started(event: object) -> None:
        say("ready")

    await Worker(app, queues=("q",)).run()


async def until_seated(url: str) -> None:
    with client(url) as connection:
        deadline = SYSTEM.elapsed() + 20
        while connection.zcard("{dayjob}:seats") == 0:
            assert SYSTEM.elapsed() < deadline
            await pause(0.01)


async def test_a_job_of_a_worker_that_was_killed_by_the_hand_over_is_back_soon(spawn: Spawn) -> None:
    async with running_server() as server, Broker(server.url) as broker:
        child = await spawn(die_of_a_hand_over, server.url)
        assert await child.said() == "ready"
        await until_seated(server.url)
        enqueued = await broker.enqueue("q", task="work", max_attempts=1)
        begun = SYSTEM.elapsed()
        await child.ended()
        [job] = await broker.claim("q", wait=20)
        assert SYSTEM.elapsed() - begun < PROMPT
        assert (job.id, job.attempts, job.epoch) == (enqueued.id, 1, 2)
        await broker.ack(job)


async def test_a_job_that_was_handed_to_a_frozen_worker_runs_elsewhere_and_not_there(spawn: Spawn) -> None:
    async with running_server() as server, Broker(server.url) as broker:
        child = await spawn(run_once, server.url)
        assert await child.said() == "ready"
        await until_seated(server.url)
        child.signal(SIGSTOP)
        enqueued = await broker.enqueue("q", encode({}), task="work")
        begun = SYSTEM.elapsed()
        assert (await broker.stats("q")).running == 1
        [job] = await broker.claim("q", wait=20)
        assert SYSTEM.elapsed() - begun < PROMPT
        assert (job.id, job.attempts, job.epoch) == (enqueued.id, 1, 2)
        child.signal(SIGCONT)
        await broker.ack(job)
        await broker.enqueue("q", encode({}), task="work")
        assert await child.said() == "ran"
        child.signal(SIGKILL)
        assert (await child.ended()) != 0
        with pytest.raises(AssertionError, match="no more to say"):
            await child.said()
