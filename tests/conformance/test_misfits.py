"""Stored jobs, schedules and results that an app's code does not accept, as ``dayjob check`` reports them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import App, Broker, BrokerConfig, Limit, NewJob, Recurring
from dayjob.cli.store_command import opened_url
from dayjob.inspect import find_misfits
from dayjob.inspect.misfits import MisfitReport
from tests.support.arrange import OpenBroker
from tests.support.flow import add, claimed, limited_broker
from tests.support.registered_workers import MEMBER
from tests.support.waiting import WatchedClock
from tests.support.workers import KEEP_ALL

Find = Callable[..., Awaitable[MisfitReport]]

CALLS = {
    b'{"to": "ada"}': None,
    b'{"to": "ada", "urgent": true}': None,
    b'{"to": "ada", "bcc": "g"}': "no parameter 'bcc': renamed to 'cc'?",
    b'{"recipient": "ada"}': "no parameter 'recipient': renamed to 'to'?",
    b'{"to": "ada", "footer": "x"}': "no parameter 'footer'",
    b'{"footer": 1, "body": 2}':
        "no parameter 'body'; no parameter 'footer'; no argument for 'to', which is required",
    b"": "no argument for 'to', which is required",
    b'{"to": 5}': "Expected `str`, got `int` in argument `to`",
    b"[]": "Expected `object`, got `array`",
    b"{": "Input data was truncated",
}  # fmt: skip
"""Payloads of jobs of the task ``mail``, with their problems."""


@pytest.fixture
def app() -> App:
    """The code about to be deployed."""
    app = App("memory://", name="shop", values_in_errors=True)

    @app.task(name="mail")
    async def mail(to: str, cc: str | None = None, *, urgent: bool = False) -> None: ...

    @app.task(name="total", every=3600)
    async def total(amount: int = 0) -> int:
        return amount

    @app.handler(queue="raw")
    async def take(job: Any) -> None: ...

    return app


@pytest.fixture
async def broker(open_broker: OpenBroker) -> Broker:
    return await open_broker(BrokerConfig(duties=False, retention=KEEP_ALL))


@pytest.fixture
def find(url: str, app: App, clock: WatchedClock) -> Find:
    """Find misfits as the command does: on object storage, with a reader beside the owner."""

    async def find(**options: Any) -> MisfitReport:
        report = MisfitReport()
        config = BrokerConfig(duties=False)
        async with Broker(opened_url(url, writes=False), config=config, clock=clock) as reader:
            await find_misfits(reader, app, report, **options)
        return report

    return find


def problems(report: MisfitReport) -> dict[tuple[str, str], dict[str, int]]:
    return {(group.task, group.problem): group.found for group in report.groups}


async def test_a_call_that_does_not_fit_is_reported_with_its_problem(broker: Broker, find: Find) -> None:
    ids = {payload: (await broker.enqueue("default", payload, task="mail")).id for payload in CALLS}
    report = await find()
    assert (report.examined, report.complete) == (len(CALLS), True)
    expected = {problem: [ids[payload]] for payload, problem in CALLS.items() if problem is not None}
    assert {group.problem: group.examples for group in report.groups} == expected


async def test_jobs_in_every_state_and_schedules_are_examined(broker: Broker, find: Find) -> None:
    for delay in (0, 60):
        for _ in range(4):
            await broker.enqueue("default", b"{}", task="mial", delay=delay)
    await broker.enqueue("raw", b"x")
    await broker.enqueue("other", b"x")
    await broker.schedule(Recurring("nightly", every=3600, task="mial"))
    await broker.schedule(Recurring("hourly", every=3600, task="total", args={"amount": 1}))
    dead, _running, done = await broker.claim("default", limit=3, worker="w")
    await broker.dead_letter(dead, "no")
    await broker.ack(done)
    report = await find()
    assert problems(report) == {
        ("mial", "no such task: renamed to 'mail'?"): {
            "recurring": 1, "scheduled": 4, "pending": 1, "running": 1, "dead": 1,
        },
        ("", "no handler for queue 'other'"): {"pending": 1},
    }  # fmt: skip
    assert report.groups[0].examples[0] == "nightly"
    assert [len(group.examples) for group in report.groups] == [3, 1]
    assert (report.count, report.examined) == (9, 12)


async def test_limited_jobs_are_examined(open_broker: OpenBroker, find: Find) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    await add(broker, "api", count=2)
    await claimed(broker)
    assert problems(await find()) == {("", "no handler for queue 'q'"): {"limited": 1, "running": 1}}


async def test_a_stored_result_must_be_of_the_annotated_type(broker: Broker, find: Find) -> None:
    for _ in range(3):
        await broker.enqueue("default", b'{"sum": 1}', task="total")
    first, second, third = await broker.claim("default", limit=3, worker="w")
    await broker.ack(first, result=b"5")
    await broker.ack(second, result=b'"five"')
    await broker.ack(third)
    report = await find()
    assert problems(report) == {("total", "the result: Expected `int`, got `str`"): {"done": 1}}
    assert report.groups[0].examples == [second.id]


async def test_schedules_of_the_code_and_tasks_of_live_workers_of_other_apps_are_no_misfits(
    broker: Broker, find: Find
) -> None:
    await broker.declare("shop", [Recurring("total", every=60, task="no longer there")])
    await broker.enqueue("default", task="bill")
    assert problems(await find()) == {("bill", "no such task"): {"pending": 1}}
    member = await broker.register(replace(MEMBER, app="shop", tasks=("bill",)))
    assert (await find()).count == 1, "a worker with the code that is replaced"
    await broker.deregister(member)
    member = await broker.register(replace(MEMBER, id="w-2", app="billing", tasks=("bill",)))
    assert (await find()).count == 0
    await broker.deregister(member)


async def test_only_the_given_queues_are_examined(broker: Broker, find: Find) -> None:
    for queue in ("a", "b", "c"):
        await broker.enqueue(queue, task="gone")
        await broker.schedule(Recurring(f"of {queue}", every=60, task="gone", queue=queue))
    report = await find(queues=("a", "c"))
    assert report.examined == 4
    assert [group.queues for group in report.groups] == [{"a", "c"}]


async def test_a_sample_is_spread_over_the_jobs(broker: Broker, find: Find) -> None:
    ids = [f"00000000-0000-7000-8000-{number:012x}" for number in range(0, 400, 2)]
    jobs = [NewJob("default", b"", "gone" if id < ids[100] else "raw", id=id) for id in ids]
    await broker.enqueue_many(jobs)
    report = await find(most=40)
    assert report.examined == 40
    assert {group.task: group.count for group in report.groups} == {"gone": 20, "raw": 20}
    assert [(await find(most=most)).examined for most in (7, 5000)] == [7, 200]


async def test_the_groups_are_bounded(broker: Broker, find: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dayjob.inspect.misfits.MAX_GROUPS", 3)
    await broker.enqueue_many([NewJob("default", task=f"gone {number}") for number in range(9)])
    report = await find()
    assert (report.groups[0].task, report.groups[0].count) == ("", 6)
    assert (len(report.groups), report.count) == (4, 9)
