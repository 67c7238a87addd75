"""Bad input raises the documented error, and nothing is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from dayjob import (
    Broker,
    Job,
    KvValueTooLarge,
    NewJob,
    PayloadTooLarge,
    Retention,
    Settlement,
)
from tests.support.arrange import KEEP_ALL, OpenBroker, dead, quiet, running
from tests.support.observe import everything
from tests.support.waiting import WatchedClock

AWARE = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
NAIVE = datetime.fromisoformat("2030-01-01T00:00:00")
NUL, SURROGATE = "a\0b", "a\ud800b"
NAN, INF = float("nan"), float("inf")

BAD_JOBS: list[tuple[type[Exception], dict[str, Any]]] = [
    (ValueError, {"queue": ""}),
    (ValueError, {"queue": "a" * 201}),
    (ValueError, {"queue": "é" * 101}),
    (ValueError, {"queue": NUL}),
    (ValueError, {"queue": SURROGATE}),
    (TypeError, {"queue": b"q"}),
    (TypeError, {"queue": None}),
    (TypeError, {"queue": ["q"]}),
    (PayloadTooLarge, {"payload": b"x" * 1001}),
    (TypeError, {"payload": "text"}),
    (TypeError, {"payload": None}),
    (TypeError, {"payload": 5}),
    (TypeError, {"payload": {"a": 1}}),
    (TypeError, {"task": None}),
    (TypeError, {"task": b"t"}),
    (ValueError, {"task": NUL}),
    (ValueError, {"task": SURROGATE}),
    (ValueError, {"task": "t" * 1025}),
    (ValueError, {"priority": -1}),
    (ValueError, {"priority": 2**32}),
    (ValueError, {"priority": 2**70}),
    (ValueError, {"max_attempts": 0}),
    (ValueError, {"max_attempts": -1}),
    (ValueError, {"max_attempts": 2**70}),
    (ValueError, {"delay": -1}),
    (ValueError, {"delay": -0.001}),
    (ValueError, {"delay": timedelta(seconds=-1)}),
    (ValueError, {"delay": NAN}),
    (ValueError, {"delay": INF}),
    (ValueError, {"delay": -INF}),
    (ValueError, {"delay": 1e300}),
    (ValueError, {"delay": 10**400}),
    (ValueError, {"delay": timedelta.max}),
    (TypeError, {"delay": "5"}),
    (TypeError, {"delay": True}),
    (ValueError, {"run_at": NAIVE}),
    (TypeError, {"run_at": 1234567890}),
    (TypeError, {"run_at": "2030-01-01T00:00:00+00:00"}),
    (ValueError, {"run_at": AWARE, "delay": 5}),
    (ValueError, {"run_at": AWARE, "delay": 0}),
    (ValueError, {"expires": NAIVE}),
    (ValueError, {"expires": -1}),
    (ValueError, {"expires": NAN}),
    (ValueError, {"expires": INF}),
    (TypeError, {"expires": "5"}),
    (ValueError, {"dedup_key": ""}),
    (ValueError, {"dedup_key": "k" * 1025}),
    (ValueError, {"dedup_key": NUL}),
    (ValueError, {"dedup_key": SURROGATE}),
    (TypeError, {"dedup_key": b"k"}),
    (ValueError, {"dedup_key": "k", "dedup_until": "finished"}),
    (ValueError, {"dedup_key": "k", "dedup_until": ""}),
    (ValueError, {"dedup_key": "k", "dedup_until": None}),
    (ValueError, {"dedup_until": "never"}),
    (ValueError, {"tenant": ""}),
    (ValueError, {"tenant": "t" * 1025}),
    (ValueError, {"tenant": NUL}),
    (ValueError, {"tenant": SURROGATE}),
    (TypeError, {"tenant": 5}),
    (ValueError, {"headers": {"": "v"}}),
    (ValueError, {"headers": {NUL: "v"}}),
    (ValueError, {"headers": {SURROGATE: "v"}}),
    (ValueError, {"headers": {"h": NUL}}),
    (ValueError, {"headers": {"h": SURROGATE}}),
    (ValueError, {"headers": {"h" * 1025: "v"}}),
    (ValueError, {"headers": {"h": "v" * 64 * 1024}}),
    (TypeError, {"headers": {"h": b"v"}}),
    (TypeError, {"headers": {"h": None}}),
    (TypeError, {"headers": {5: "v"}}),
    (TypeError, {"headers": [("h", "v")]}),
    (TypeError, {"headers": "h"}),
    (KvValueTooLarge, {"kv": {b"k": b"x" * (256 * 1024 + 1)}}),
    (TypeError, {"kv": {"k": b"v"}}),
    (TypeError, {"kv": {b"k": "v"}}),
    (TypeError, {"kv": {b"k": None}}),
    (TypeError, {"kv": [(b"k", b"v")]}),
    (ValueError, {"kv": {b"": b"v"}}),
    (ValueError, {"kv": {b"k" * 1025: b"v"}}),
    (ValueError, {"id": ""}),
    (ValueError, {"id": "nonsense"}),
    (ValueError, {"id": "0190f3a2-7b1c-7def-8123-456789abcde"}),
    (ValueError, {"id": "0190f3a2-7b1c-7def-8123-456789abcdeg"}),
    (ValueError, {"id": 5}),
    (ValueError, {"id": b"0123456789abcdef"}),
]


@pytest.fixture
async def small(open_broker: OpenBroker) -> Broker:
    """A broker with a payload limit of 1,000 bytes."""
    return await open_broker(quiet(max_payload=1000, retention=KEEP_ALL))


async def outcome(call: Awaitable[object]) -> object:
    """Return the error that the call raised, or its result."""
    try:
        return await call
    except Exception as error:
        return error


@pytest.mark.parametrize("way", ["enqueue", "enqueue_many", "among good ones", "follow-up", "settle_many"])
async def test_a_bad_job_is_refused_and_nothing_is_written(small: Broker, way: str) -> None:
    claim = await running(small)
    before = await everything(small)
    good = NewJob("new", kv={b"new": b"v"})
    ways: dict[str, Callable[[dict[str, Any]], Awaitable[object]]] = {
        "enqueue": lambda options: small.enqueue(**options),
        "enqueue_many": lambda options: small.enqueue_many([NewJob(**options)]),
        "among good ones": lambda options: small.enqueue_many([good, NewJob(**options), NewJob("r")]),
        "follow-up": lambda options: small.ack(claim, kv=good.kv, enqueue=[good, NewJob(**options)]),
        "settle_many": lambda options: small.settle_many(
            [Settlement.ack(claim, enqueue=[NewJob(**options)])]
        ),
    }
    for error, bad in BAD_JOBS:
        answer = await outcome(ways[way]({"queue": "q", "kv": good.kv, **bad}))
        shown = ascii(bad)[:80]
        assert isinstance(answer, error), f"{shown}: {answer!r}"
        assert len(str(answer)) < 1000, f"{shown}: the message shows the value, shortened"
        assert await everything(small) == before, f"{shown} changed something"
    assert await small.kv_get(b"new") is None
    await small.ack(claim)


async def test_size_errors_have_the_size_and_the_limit(small: Broker) -> None:
    with pytest.raises(PayloadTooLarge, match=r"1,001.*1,000") as caught:
        await small.enqueue("q", b"x" * 1001)
    assert (caught.value.size, caught.value.max) == (1001, 1000)
    with pytest.raises(ValueError, match="201"):
        await small.enqueue("a" * 201)


async def test_a_job_at_the_limits_is_accepted(small: Broker) -> None:
    await small.enqueue(
        "a" * 200, b"x" * 1000, task="t" * 1024, priority=2**32 - 1, max_attempts=2**31 - 1,
        dedup_key="k" * 1024, tenant="t" * 1024, headers={"h" * 1024: "v" * 63 * 1024},
        kv={b"k" * 1024: b"v" * 256 * 1024}, delay=timedelta(days=36_500),
    )  # fmt: skip
    assert (await small.stats("a" * 200)).scheduled == 1


BAD_QUEUES: list[tuple[type[Exception], Any]] = [
    (ValueError, ""),
    (ValueError, "a" * 201),
    (ValueError, NUL),
    (ValueError, SURROGATE),
    (TypeError, b"q"),
    (TypeError, None),
]


@pytest.mark.parametrize(("error", "queue"), BAD_QUEUES, ids=lambda value: ascii(value)[:30])
async def test_every_method_refuses_a_bad_queue_name(
    broker: Broker, error: type[Exception], queue: Any
) -> None:
    before = await everything(broker)
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: broker.claim([queue]),
        lambda: broker.claim(["fine", queue]),
        lambda: broker.stats(queue),
        lambda: broker.pause(queue),
        lambda: broker.resume(queue),
        lambda: broker.requeue_dead(queue),
    ]
    if queue is not None:
        attempts += [lambda: broker.purge_dead(queue)]
    for attempt in attempts:
        with pytest.raises(error):
            await attempt()
    assert await everything(broker) == before


@pytest.mark.parametrize("name", [NUL, SURROGATE], ids=ascii)
async def test_a_listing_refuses_a_name_that_an_engine_cannot_store(broker: Broker, name: str) -> None:
    listings: dict[str, Awaitable[object]] = {
        "jobs of a queue": broker.jobs(name),
        "jobs of a task": broker.jobs(task=name),
        "dead jobs": broker.dead_jobs(name),
        "latest dead jobs": broker.latest_dead(name),
    }
    answers = {listing: await outcome(call) for listing, call in listings.items()}
    assert {listing: type(answer) for listing, answer in answers.items()} == dict.fromkeys(
        listings, ValueError
    )


async def test_a_listing_of_an_unknown_name_is_empty(broker: Broker) -> None:
    await dead(broker)
    for name in ("", "unknown", "a" * 2000):
        assert await broker.jobs(name) == await broker.jobs(task=name or "unknown") == []
        assert await broker.dead_jobs(name) == await broker.latest_dead(name) == []


BAD_SETTLEMENTS: dict[str, tuple[type[Exception], Callable[[Job], Settlement]]] = {
    "nack delay negative": (ValueError, lambda job: Settlement.nack(job, "x", delay=-1)),
    "nack delay nan": (ValueError, lambda job: Settlement.nack(job, "x", delay=NAN)),
    "nack delay text": (TypeError, lambda job: Settlement.nack(job, "x", delay="5")),  # type: ignore[arg-type]
    "nack error bytes": (TypeError, lambda job: Settlement.nack(job, b"x")),  # type: ignore[arg-type]
    "nack error none": (TypeError, lambda job: Settlement.nack(job, None)),  # type: ignore[arg-type]
    "dead_letter number": (TypeError, lambda job: Settlement.dead_letter(job, 5)),  # type: ignore[arg-type]
    "snooze negative": (ValueError, lambda job: Settlement.snooze(job, -0.1)),
    "snooze infinite": (ValueError, lambda job: Settlement.snooze(job, INF)),
    "snooze none": (ValueError, lambda job: Settlement.snooze(job, None)),  # type: ignore[arg-type]
    "ack result text": (TypeError, lambda job: Settlement.ack(job, result="x")),  # type: ignore[arg-type]
    "ack result large": (PayloadTooLarge, lambda job: Settlement.ack(job, result=b"x" * 1001)),
    "ack kv key": (ValueError, lambda job: Settlement.ack(job, kv={b"": b"v"})),
    "ack kv value": (KvValueTooLarge, lambda job: Settlement.ack(job, kv={b"k": b"x" * 2**19})),
}


@pytest.mark.parametrize(("error", "bad"), BAD_SETTLEMENTS.values(), ids=BAD_SETTLEMENTS)
async def test_a_bad_settlement_is_refused_and_nothing_is_settled(
    small: Broker, error: type[Exception], bad: Callable[[Job], Settlement]
) -> None:
    first, second = await running(small), await running(small)
    before = await everything(small)
    with pytest.raises(error):
        await small.settle_many([Settlement.ack(first), bad(second)])
    settlement: Any = bad(second)
    singly: dict[str, Callable[[], Awaitable[object]]] = {
        "ack": lambda: small.ack(second, result=settlement.result, kv=settlement.kv),
        "nack": lambda: small.nack(second, settlement.error, delay=settlement.delay),
        "dead_letter": lambda: small.dead_letter(second, settlement.error),
        "snooze": lambda: small.snooze(second, settlement.delay),
    }
    with pytest.raises(error):
        await singly[settlement.transition]()
    assert await everything(small) == before
    results = await small.settle_many([Settlement.ack(first), Settlement.ack(second)])
    assert all(result.applied for result in results)


async def test_other_bad_arguments_are_refused(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    id = await dead(broker)
    waiting = await broker.enqueue("q")
    before = await everything(broker)
    attempts: list[tuple[type[Exception], Callable[[], Awaitable[object]]]] = [
        (ValueError, lambda: broker.claim("q", lease=-1)),
        (ValueError, lambda: broker.claim("q", lease=0)),
        (ValueError, lambda: broker.claim("q", lease=NAN)),
        (TypeError, lambda: broker.claim("q", lease="5")),  # type: ignore[arg-type]
        (ValueError, lambda: broker.claim("q", wait=-1)),
        (ValueError, lambda: broker.claim("q", wait=INF)),
        (ValueError, lambda: broker.claim("q", worker="")),
        (ValueError, lambda: broker.claim("q", worker=NUL)),
        (TypeError, lambda: broker.claim("q", worker=5)),  # type: ignore[arg-type]
        (ValueError, lambda: broker.renew(claim, -1)),
        (ValueError, lambda: broker.renew(claim, 0)),
        (ValueError, lambda: broker.renew(claim, INF)),
        (ValueError, lambda: broker.wait(id, -1)),
        (ValueError, lambda: broker.wait(id, NAN)),
        (ValueError, lambda: broker.reschedule(waiting.id, run_at=NAIVE)),
        (TypeError, lambda: broker.reschedule(waiting.id, run_at=5)),  # type: ignore[arg-type]
        (ValueError, lambda: broker.reschedule(waiting.id, priority=-1)),
        (ValueError, lambda: broker.reschedule(waiting.id, run_at=AWARE, priority=2**32)),
        (ValueError, lambda: broker.sweep_done(-1)),
        (ValueError, lambda: broker.sweep_dead(NAN)),
        (ValueError, lambda: broker.jobs(state="nonsense")),
        (ValueError, lambda: broker.kv_get(b"")),
        (ValueError, lambda: broker.kv_put(b"k" * 1025, b"v")),
        (TypeError, lambda: broker.kv_put("k", b"v")),  # type: ignore[arg-type]
        (TypeError, lambda: broker.kv_put(b"k", "v")),  # type: ignore[arg-type]
        (TypeError, lambda: broker.kv_put(b"k", None)),  # type: ignore[arg-type]
        (TypeError, lambda: broker.kv_get("k")),  # type: ignore[arg-type]
        (ValueError, lambda: broker.kv_delete(b"")),
        (TypeError, lambda: broker.enqueue_many(["q"])),  # type: ignore[list-item]
        (TypeError, lambda: broker.ack(claim, enqueue=["q"])),  # type: ignore[list-item]
    ]
    for number, (error, attempt) in enumerate(attempts):
        with pytest.raises(error):
            await attempt()
        assert await everything(broker) == before, f"number {number} changed something"


def test_bad_retention_is_refused_at_construction() -> None:
    with pytest.raises(ValueError, match=r"Retention\.done"):
        Retention(done=-1)
