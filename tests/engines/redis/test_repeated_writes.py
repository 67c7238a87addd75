"""A write that is repeated with its token changes nothing more and gets the first reply, for every verb."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, CancelOutcome, Enqueued, Job, JobState, NewJob, Retention
from dayjob.engines.base import (
    ClaimRequest,
    DocumentWrite,
    Engine,
    Insertion,
    Progress,
    Renewal,
    Reschedule,
    RetentionTimes,
    SettleOp,
    Token,
    Transient,
)
from dayjob.engines.redis import engine as engine_module
from dayjob.engines.redis.client import Client
from dayjob.engines.redis.engine import RedisEngine
from dayjob.model.job import id_key
from dayjob.model.lifecycle import Transition
from dayjob.runtime.ids import new_key
from tests.engines.redis.waiting_claims import engine_of
from tests.support.arrange import claim_one, dead
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client


class Jobs(Struct):
    """A job in each state, on a queue of the state's name, and three dead ones whose retention is over."""

    broker: Broker
    running: Job
    pending: bytes
    dead: list[bytes]

    @property
    def engine(self) -> RedisEngine:
        return engine_of(self.broker)

    @property
    def retention(self) -> Any:
        return self.broker._policies.retention

    def insertion(self) -> Insertion:
        return self.broker._validator.insertion(NewJob("new", kv={b"k": b"1"}))

    def settle_op(self) -> SettleOp:
        return SettleOp(
            self.running.key, self.running.epoch, Transition.ACK, RetentionTimes(),
            insert=(self.insertion(),),
        )  # fmt: skip


@pytest.fixture
async def jobs(proxy: Proxy) -> AsyncIterator[Jobs]:
    config = BrokerConfig(duties=False, retention=Retention(dead=1e-6))
    async with Broker(proxy.url("dayjob"), config=config) as broker:
        ids = [await dead(broker, "dead") for _ in range(3)]
        await broker.enqueue("running")
        running = await claim_one(broker, "running", lease=1e-6)
        pending = (await broker.enqueue("pending")).id
        await broker.enqueue("due", delay=1e-6)
        yield Jobs(broker, running, id_key(pending), [id_key(id) for id in ids])


REQUEST = ClaimRequest((("pending", 60_000_000),), 5, "w")
DOCUMENT = DocumentWrite("k", "a", None, b"1")

Call = Callable[[Jobs, Token], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "insert": lambda jobs, token: jobs.engine.insert([jobs.insertion()], token=token),
    "claim": lambda jobs, token: jobs.engine.claim([REQUEST], token=token),
    "insert_and_claim": lambda jobs, token: jobs.engine.insert_and_claim(
        [jobs.insertion()], [REQUEST], token=token
    ),
    "settle": lambda jobs, token: jobs.engine.settle([jobs.settle_op()], token=token),
    "renew": lambda jobs, token: jobs.engine.renew(
        [Renewal(jobs.running.key, jobs.running.epoch, 60_000_000)], token=token
    ),
    "record_progress": lambda jobs, token: jobs.engine.record_progress(
        [Progress(jobs.running.key, jobs.running.epoch, 0.1, "begun")], token=token
    ),
    "cancel": lambda jobs, token: jobs.engine.cancel([jobs.pending], jobs.retention, token=token),
    "requeue": lambda jobs, token: jobs.engine.requeue(jobs.dead[:1], token=token),
    "requeue_dead": lambda jobs, token: jobs.engine.requeue_dead("dead", 5, token=token),
    "purge_dead": lambda jobs, token: jobs.engine.purge_dead("dead", 5, token=token),
    "purge": lambda jobs, token: jobs.engine.purge(jobs.dead[:2], token=token),
    "reschedule": lambda jobs, token: jobs.engine.reschedule(
        [Reschedule(jobs.pending, None, 7)], token=token
    ),
    "kv_write": lambda jobs, token: jobs.engine.kv_write([(b"k", b"1")], token=token),
    "pause": lambda jobs, token: jobs.engine.pause("q", True, token=token),
    "promote": lambda jobs, token: jobs.engine.promote(5, jobs.retention, token=token),
    "reap": lambda jobs, token: jobs.engine.reap(5, jobs.retention, token=token),
    "reclaim": lambda jobs, token: jobs.engine.reclaim(["w"], 5, jobs.retention, token=token),
    "sweep": lambda jobs, token: jobs.engine.sweep(5, token=token),
    "sweep_finished": lambda jobs, token: jobs.engine.sweep_finished(JobState.DEAD, 0, None, 2, token=token),
    "compare_and_set": lambda jobs, token: jobs.engine.compare_and_set([DOCUMENT], token=token),
}
"""Each verb that takes a token."""

REPLIES: dict[str, Callable[[Jobs, Any], Any]] = {
    "insert": lambda jobs, reply: [each.created for each in reply] == [True],
    "claim": lambda jobs, reply: (
        [[(job.key, job.epoch) for job in each] for each in reply] == [[(jobs.pending, 1)]]
    ),
    "insert_and_claim": lambda jobs, reply: (
        [each.created for each in reply[0]] == [True]
        and [[(job.key, job.epoch) for job in each] for each in reply[1]] == [[(jobs.pending, 1)]]
    ),
    "settle": lambda jobs, reply: reply == [JobState.DONE],
    "renew": lambda jobs, reply: reply[0].lease_us is not None,
    "record_progress": lambda jobs, reply: reply is None,
    "cancel": lambda jobs, reply: reply == [CancelOutcome.REMOVED],
    "requeue": lambda jobs, reply: reply == [True],
    "requeue_dead": lambda jobs, reply: reply == 3,
    "purge_dead": lambda jobs, reply: reply == 3,
    "purge": lambda jobs, reply: reply == 2,
    "reschedule": lambda jobs, reply: reply == [True],
    "kv_write": lambda jobs, reply: reply is None,
    "pause": lambda jobs, reply: reply is None,
    "promote": lambda jobs, reply: reply == (1, 0),
    "reap": lambda jobs, reply: reply == 1,
    "reclaim": lambda jobs, reply: reply == 1,
    "sweep": lambda jobs, reply: reply == 3,
    "sweep_finished": lambda jobs, reply: reply == (2, jobs.dead[1]),
    "compare_and_set": lambda jobs, reply: reply is True,
}
"""The check of each verb's reply."""

UNDONE: dict[str, Callable[[Jobs], Awaitable[Any]]] = {
    "record_progress": lambda jobs: jobs.engine.record_progress(
        [Progress(jobs.running.key, jobs.running.epoch, 0.9, "nearly done")]
    ),
    "reschedule": lambda jobs: jobs.engine.reschedule([Reschedule(jobs.pending, None, 9)]),
    "kv_write": lambda jobs: jobs.engine.kv_write([(b"k", b"newer")]),
    "pause": lambda jobs: jobs.engine.pause("q", False),
    "compare_and_set": lambda jobs: jobs.engine.compare_and_set([DocumentWrite("k", "a", b"1", None)]),
}
"""A later write that a repetition would undo, for verbs whose repetition would not show otherwise."""


def new_token() -> Token:
    return Token(key=new_key(), client=new_key(), slot=0, number=1)


def content(server: Server) -> dict[bytes, bytes]:
    """Return all keys but the stored replies, as the server dumps them."""
    with client(server.url) as connection:
        names = [name for name in connection.scan_iter() if b":reply:" not in name]
        return {name: connection.dump(name) for name in names}


def test_every_verb_with_a_token_is_tested() -> None:
    verbs = {name: member for name, member in vars(Engine).items() if inspect.isfunction(member)}
    with_token = {name for name, verb in verbs.items() if "token" in inspect.signature(verb).parameters}
    assert with_token == CALLS.keys() == REPLIES.keys()


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
    if verb in UNDONE:
        await UNDONE[verb](jobs)
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
async def test_a_call_without_a_token_is_applied(jobs: Jobs, verb: str) -> None:
    reply = await CALLS[verb](jobs, None)  # type: ignore[arg-type]
    assert REPLIES[verb](jobs, reply), reply


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

    async def lose_one(client: Client, verb: str, keys: Sequence[bytes], arguments: Sequence[Any]) -> Any:
        nonlocal calls
        reply = await run(client, verb, keys, arguments)
        calls += 1
        if calls == failing:
            raise Transient("the reply was lost", commit_unknown=True)
        return reply

    monkeypatch.setattr(Client, "run", lose_one)
    assert await broker.reclaim_from(["gone"]) == 400
    assert calls > 5
    assert (await broker.stats("q")).pending == 400
    assert {len(job.errors) for job in await broker.jobs("q", limit=400)} == {1}


async def test_a_job_enqueued_twice_under_one_id_is_reported_as_existing(jobs: Jobs) -> None:
    """Another token is another write, even for the same job."""
    insertion = jobs.insertion()
    assert [each.created for each in await jobs.engine.insert([insertion], token=new_token())] == [True]
    again: list[Enqueued] = await jobs.engine.insert([insertion], token=new_token())
    assert [each.created for each in again] == [False]
