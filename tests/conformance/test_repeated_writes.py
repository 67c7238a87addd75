"""Lost replies: a write that is repeated with its token is applied once and gets its first reply.

For the engines that store replies. The others have no network that could lose one. SlateDB keeps the replies
of writes that were not durable in time: see ``tests/engines/slatedb/test_lost_replies.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker, NewJob
from dayjob.engines.base import Contended, Engine, RetentionTimes, SettleOp, Token, Transient
from dayjob.model.lifecycle import Transition
from tests.support.repeated_writes import (
    CALLS,
    LATER_WRITES,
    REPLIES,
    REQUEST,
    Jobs,
    jobs_in_each_state,
    new_token,
)


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    if not Broker(url).capabilities.stores_replies:
        pytest.skip("the engine has no network that could lose a reply")
    async with jobs_in_each_state(url) as jobs:
        yield jobs


def test_every_verb_with_a_token_is_tested() -> None:
    verbs = {name: member for name, member in vars(Engine).items() if inspect.isfunction(member)}
    with_token = {name for name, verb in verbs.items() if "token" in inspect.signature(verb).parameters}
    assert with_token == CALLS.keys() == REPLIES.keys()


@pytest.mark.parametrize("verb", CALLS)
async def test_a_repeated_write_is_applied_once_and_gets_its_first_reply(jobs: Jobs, verb: str) -> None:
    token = new_token()
    first = await CALLS[verb](jobs, token)
    assert REPLIES[verb](jobs, first), first
    if verb in LATER_WRITES:
        await LATER_WRITES[verb](jobs)
    after = await jobs.state()
    for _ in range(2):
        reply = await CALLS[verb](jobs, replace(token, repeated=True))
        assert REPLIES[verb](jobs, reply), reply
        assert await jobs.state() == after


@pytest.mark.parametrize("transition", [Transition.ACK, Transition.NACK, Transition.RELEASE])
async def test_a_repeated_settlement_without_effects_gets_its_first_reply(
    jobs: Jobs, transition: Transition
) -> None:
    op = SettleOp(jobs.running.key, jobs.running.claim, transition, RetentionTimes())
    token = new_token()
    [first] = await jobs.engine.settle([op], token=token)
    assert first is not None
    after = await jobs.state()
    assert await jobs.engine.settle([op], token=replace(token, repeated=True)) == [first]
    assert await jobs.state() == after


async def test_a_repeated_claim_leaves_out_a_job_that_another_claim_has_taken_since(jobs: Jobs) -> None:
    token = new_token()
    [[claimed]] = await jobs.engine.claim([REQUEST], token=token)
    await jobs.broker.release(claimed)
    [[current]] = await jobs.engine.claim([REQUEST], token=new_token())
    assert await jobs.engine.claim([REQUEST], token=replace(token, repeated=True)) == [[]]
    await jobs.broker.ack(current)


@pytest.mark.parametrize("verb", CALLS)
async def test_the_repetition_of_a_write_that_never_arrived_is_applied(jobs: Jobs, verb: str) -> None:
    reply = await CALLS[verb](jobs, new_token(repeated=True))
    assert REPLIES[verb](jobs, reply), reply


@pytest.mark.parametrize("verb", CALLS)
async def test_a_write_without_a_token_is_applied(jobs: Jobs, verb: str) -> None:
    reply = await CALLS[verb](jobs, None)
    assert REPLIES[verb](jobs, reply), reply


@pytest.mark.parametrize("verb", CALLS)
async def test_a_repetition_that_is_contended_keeps_its_token(jobs: Jobs, verb: str) -> None:
    """The lock may be that of the first try, whose commit is still under way."""
    tries = 0

    async def call(token: Token) -> Any:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise Contended("locked")
        reply = await CALLS[verb](jobs, token)
        if tries == 1:
            raise Transient("the reply is lost", commit_unknown=True)
        return reply

    reply = await jobs.broker._session.storage.write(call)
    assert REPLIES[verb](jobs, reply), reply
    assert tries == 3


async def test_a_repeated_insert_of_a_job_that_has_left_stores_nothing(jobs: Jobs) -> None:
    job, token = jobs.broker._validator.insertion(NewJob("plain")), new_token()
    [first] = await jobs.engine.insert([job], token=token)
    [claimed] = await jobs.broker.claim("plain")
    await jobs.broker.ack(claimed)
    assert await jobs.engine.insert([job], token=replace(token, repeated=True)) == [first]
    assert (await jobs.broker.stats("plain")).pending == 0


async def test_the_same_job_with_another_token_is_another_write(jobs: Jobs) -> None:
    job = jobs.insertion()
    assert [each.created for each in await jobs.engine.insert([job], token=new_token())] == [True]
    assert [each.created for each in await jobs.engine.insert([job], token=new_token())] == [False]
