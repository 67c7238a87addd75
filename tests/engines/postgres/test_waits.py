"""Waits for jobs of other processes: announced in few notifications, and dropped when they expire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, NewJob
from dayjob.engines.postgres import notifier
from tests.support.arrange import KEEP_ALL
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)


def awaited(broker: Broker) -> int:
    """Return the number of waits of other processes that are kept."""
    engine: Any = broker._engine
    return len(engine._notifier._awaited)


async def test_a_process_that_never_waits_for_jobs_drops_the_waits_of_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "WAIT_EXPIRY", 1.0)
    async with Broker(url, config=QUIET) as waiting, Broker(url, config=QUIET) as listening:
        idle = asyncio.create_task(listening.claim("other", wait=3600))
        jobs = await waiting.enqueue_many([NewJob("q")] * 50)
        waits = [asyncio.create_task(waiting.wait(job.id, 3600)) for job in jobs]
        await until(lambda: awaited(listening) == 50)
        for task in waits:
            task.cancel()
        await until(lambda: awaited(listening) == 0)
        idle.cancel()
        await asyncio.wait({idle, *waits})


async def test_many_waits_at_once_take_few_notifications_and_are_all_answered(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "CHECK", 3600.0)
    async with Broker(url, config=QUIET) as waiting, Broker(url, config=QUIET) as working:
        idle = asyncio.create_task(working.claim("other", wait=3600))
        jobs = await waiting.enqueue_many([NewJob("q")] * 1000)
        engine: Any = waiting._engine
        sent: list[list[str]] = []
        send = engine._notifier._throttle._send

        def counted(messages: list[str]) -> None:
            sent.append(messages)
            send(messages)

        engine._notifier._throttle._send = counted
        waits = [asyncio.create_task(waiting.wait(job.id, 3600)) for job in jobs]
        await until(lambda: awaited(working) == 1000)
        assert sum(map(len, sent)) < 100
        claimed = await working.claim("q", limit=1000)
        await asyncio.gather(*(working.ack(job) for job in claimed))
        replies = await with_timeout(asyncio.gather(*waits))
        assert {reply.status for reply in replies} == {"completed"}
        idle.cancel()
        await asyncio.wait({idle})
