"""Any job: it is refused with the reason, or stored, claimed, settled and listed with the same values."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dayjob import Broker, BrokerConfig, Job, JobState, NewJob, Retention
from tests.fuzz.inputs import TEXT, few

DAY = 24 * 3600
CONFIG = BrokerConfig(duties=False, retention=Retention(done=DAY, dead=DAY, cancelled=DAY))

BYTES = st.binary(max_size=50) | st.sampled_from([b"\0" * 100_000, b"\xff\xfe", b"null"])
JOBS = st.fixed_dictionaries(
    {"queue": TEXT, "payload": BYTES},
    optional={
        "task": TEXT,
        "headers": st.dictionaries(TEXT, TEXT, max_size=3),
        "tenant": st.none() | TEXT,
        "dedup_key": st.none() | TEXT,
        "priority": st.integers(-10, 2**33),
        "max_attempts": st.integers(-1, 2**32),
        "kv": st.dictionaries(BYTES, BYTES, max_size=2),
    },
)
OUTCOMES = st.tuples(st.sampled_from(["ack", "nack", "dead_letter"]), BYTES, TEXT)


async def refused_or_stored(broker: Broker, given: dict[str, Any], outcome: tuple[str, bytes, str]) -> None:
    before = await broker.all_stats()
    try:
        new = NewJob(**given)
        enqueued = await broker.enqueue_job(new)
    except (ValueError, TypeError):
        assert await broker.all_stats() == before
        return
    assert enqueued.created
    [claim] = await broker.claim(new.queue)
    stored = await broker.get(enqueued.id)
    assert stored is not None
    assert shown(claim) == shown(stored) == shown(new)
    kind, result, error_text = outcome
    if kind == "ack":
        await broker.ack(claim, result=result)
    elif kind == "nack":
        await broker.nack(claim, error_text, delay=0)
    else:
        await broker.dead_letter(claim, error_text)
    [listed] = await broker.jobs(new.queue)
    assert shown(listed) == shown(new)
    if kind == "ack":
        assert (listed.state, listed.result) == (JobState.DONE, result)
    for again in await broker.claim(new.queue):
        await broker.dead_letter(again, error_text)
    await broker.sweep_done(0)
    await broker.purge_dead(new.queue)
    assert await broker.jobs(new.queue) == []


def shown(job: Job | NewJob) -> tuple[Any, ...]:
    return job.queue, job.payload, job.task, dict(job.headers or {}), job.tenant


def test_any_job_is_refused_or_stored_unchanged(url: str) -> None:
    with asyncio.Runner() as runner:
        broker = runner.run(Broker(url, config=CONFIG).open())

        @given(JOBS, OUTCOMES)
        @few(0.3)
        def check(job: dict[str, Any], outcome: tuple[str, bytes, str]) -> None:
            runner.run(refused_or_stored(broker, job, outcome))

        check()
        runner.run(broker.close())
