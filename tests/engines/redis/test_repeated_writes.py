"""Replies that Redis lost on the wire: the repetition changes nothing more, for every write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker, EngineUnavailable, JobState, NewJob
from dayjob.engines.base import Token, Transient
from dayjob.engines.redis import engine as engine_module
from dayjob.engines.redis.client import Client
from dayjob.runtime.ids import new_key
from tests.engines.redis.waiting_claims import cancel, sizes, waiting_claim
from tests.support.arrange import claim_one, dead
from tests.support.repeated_writes import CALLS, LATER_WRITES, REPLIES, Jobs, jobs_in_each_state, new_token
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client


@pytest.fixture
async def jobs(proxy: Proxy) -> AsyncIterator[Jobs]:
    async with jobs_in_each_state(proxy.url("dayjob")) as jobs:
        yield jobs


def content(server: Server) -> dict[bytes, bytes]:
    """Return all keys but the stored replies, as the server dumps them."""
    with client(server.url) as connection:
        names = [name for name in connection.scan_iter() if b":reply:" not in name]
        return {name: connection.dump(name) for name in names}


@pytest.mark.parametrize("verb", CALLS)
async def test_a_write_whose_reply_was_lost_is_applied_once(
    server: Server, proxy: Proxy, jobs: Jobs, verb: str
) -> None:
    token = new_token()
    proxy.losing = 1
    with pytest.raises(Transient) as lost:
        await CALLS[verb](jobs, token)
    assert lost.value.commit_unknown
    assert proxy.lost == 1
    if verb in LATER_WRITES:
        await LATER_WRITES[verb](jobs)
    after = content(server)
    for _ in range(2):
        reply = await CALLS[verb](jobs, replace(token, repeated=True))
        assert REPLIES[verb](jobs, reply), reply
        assert content(server) == after


@pytest.mark.parametrize("verb", CALLS)
async def test_a_write_that_never_arrived_is_applied_by_its_repetition(
    proxy: Proxy, jobs: Jobs, verb: str
) -> None:
    token = new_token()
    proxy.replies = [b"-READONLY You can't write against a read only replica.\r\n"]
    with pytest.raises(Transient) as refused:
        await CALLS[verb](jobs, token)
    assert not refused.value.commit_unknown
    reply = await CALLS[verb](jobs, token)
    assert REPLIES[verb](jobs, reply), reply


@pytest.mark.parametrize("verb", CALLS)
async def test_a_write_that_changes_nothing_refuses_the_late_tries_of_its_slot(jobs: Jobs, verb: str) -> None:
    """An earlier try of the slot was held up on the way. A claim that finds no job was its successor."""
    slot = new_key()
    await CALLS[verb](jobs, Token(new_key(), slot, slot=0, number=1))
    late, successor = (Token(new_key(), slot, slot=0, number=number) for number in (2, 3))
    await CALLS[verb](jobs, successor)
    with pytest.raises(EngineUnavailable, match="STALE"):
        await jobs.engine.kv_write([(b"k", b"older")], token=late)


@pytest.mark.parametrize("verb", ["claim", "promote", "reap", "reclaim", "sweep"])
async def test_a_repeated_write_that_changed_nothing_changes_nothing_later(jobs: Jobs, verb: str) -> None:
    """Otherwise a late try of a claim would claim a job for which there is no caller."""
    for _ in range(2):
        await CALLS[verb](jobs, new_token())
    token = new_token()
    first = await CALLS[verb](jobs, token)
    await jobs.broker.enqueue("pending")
    await jobs.broker.enqueue("due", delay=1e-6)
    await jobs.broker.enqueue("running")
    await claim_one(jobs.broker, "running", lease=1e-6, worker="w")
    await dead(jobs.broker)
    before = await jobs.state()
    assert await CALLS[verb](jobs, replace(token, repeated=True)) == first
    assert await jobs.state() == before


async def test_a_lost_registration_of_a_waiting_claim_is_not_made_twice(
    server: Server, proxy: Proxy, through: Broker
) -> None:
    await through.enqueue("elsewhere")
    proxy.losing = 1
    waiting = await waiting_claim(through)
    assert proxy.lost == 1
    assert sizes(server, "waiting_claims") == [1]
    await cancel(waiting)
    await through.claim("elsewhere")
    assert sizes(server, "waiting_claims") == [0]


async def test_a_sweep_that_is_repeated_continues_from_the_cursor_of_its_first_try(
    proxy: Proxy, jobs: Jobs
) -> None:
    """The repetition reads other ids, since the first try removed its own."""
    token = new_token()
    proxy.losing = 1
    with pytest.raises(Transient):
        await CALLS["sweep_finished"](jobs, token)
    swept, cursor = await CALLS["sweep_finished"](jobs, replace(token, repeated=True))
    assert (swept, cursor) == (2, jobs.dead[1])
    assert await jobs.engine.sweep_finished(JobState.DEAD, 0, cursor, 2) == (1, None)


@pytest.mark.parametrize("failing", [1, 2, 4])
async def test_a_reclaim_that_failed_at_any_step_counts_each_claim_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The reply of one step is lost; the repetition continues after the last step that ended claims."""
    monkeypatch.setattr(engine_module, "_EXAMINED", 50)
    await broker.enqueue_many([NewJob("q") for _ in range(400)])
    await broker.claim("q", limit=400, worker="gone")
    run = Client.run
    calls = 0

    async def lose_one(
        client: Client, verb: str, key: bytes, arguments: Sequence[Any], **options: Any
    ) -> Any:
        nonlocal calls
        reply = await run(client, verb, key, arguments, **options)
        calls += 1
        if calls == failing:
            raise Transient("the reply was lost", commit_unknown=True)
        return reply

    monkeypatch.setattr(Client, "run", lose_one)
    assert await broker.reclaim_from(["gone"]) == 400
    assert calls > 5
    assert (await broker.stats("q")).pending == 400
    assert {len(job.errors) for job in await broker.jobs("q", limit=400)} == {1}
