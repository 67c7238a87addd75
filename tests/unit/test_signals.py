"""Signals wake the listeners of their topic, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from dayjob.runtime.signals import (
    CANCEL,
    DUE,
    FEW,
    LEAD_DOCUMENT,
    Signals,
    Topic,
    job_topic,
    look_after,
    queue_topic,
)
from tests.support.bound import BOUND

EMAIL, IMAGES = queue_topic("email"), queue_topic("images")


def test_a_listener_is_woken_by_its_topic_and_by_no_other() -> None:
    signals = Signals()
    with signals.listen([EMAIL]) as event:
        signals.publish([IMAGES, DUE, CANCEL])
        assert not event.is_set()
        signals.publish([IMAGES, EMAIL])
        assert event.is_set()


@pytest.mark.parametrize("topic", [EMAIL, job_topic(b"email"), DUE, CANCEL])
def test_each_of_several_topics_wakes_a_listener(topic: Topic) -> None:
    signals = Signals()
    with signals.listen([EMAIL, job_topic(b"email"), DUE, CANCEL]) as event:
        signals.publish([topic])
        assert event.is_set()


def test_a_topic_wakes_all_its_listeners() -> None:
    signals = Signals()
    with (
        signals.listen([EMAIL]) as one,
        signals.listen([EMAIL, DUE]) as other,
        signals.listen([DUE]) as third,
    ):
        signals.publish([EMAIL])
        assert [one.is_set(), other.is_set(), third.is_set()] == [True, True, False]


def test_a_listener_that_cleared_its_event_is_woken_again() -> None:
    signals = Signals()
    with signals.listen([EMAIL]) as event:
        signals.publish([EMAIL])
        event.clear()
        signals.publish([EMAIL])
        assert event.is_set()


def test_a_change_of_unknown_kind_wakes_every_listener() -> None:
    signals = Signals()
    with signals.listen([EMAIL]) as one, signals.listen([job_topic(b"x"), DUE]) as other:
        signals.publish_all()
        assert one.is_set()
        assert other.is_set()


def test_a_listener_without_topics_is_woken_by_nothing() -> None:
    signals = Signals()
    with signals.listen([]) as event:
        signals.publish([EMAIL])
        signals.publish_all()
        assert not event.is_set()


def test_a_closed_listener_is_not_woken_and_the_others_still_are() -> None:
    signals = Signals()
    with signals.listen([EMAIL]) as stays:
        with signals.listen([EMAIL]) as leaves:
            pass
        signals.publish([EMAIL])
        signals.publish_all()
        assert stays.is_set()
        assert not leaves.is_set()


@pytest.mark.parametrize("topics", [[EMAIL], [EMAIL, DUE], [EMAIL, EMAIL]], ids=["one", "two", "twice"])
def test_a_closed_listener_is_removed_from_every_topic_also_after_an_error(topics: list[Topic]) -> None:
    signals = Signals()
    with suppress(RuntimeError), signals.listen(iter(topics)):
        assert signals.topics
        raise RuntimeError
    assert not signals.topics
    assert signals._listeners == {}


def test_publish_without_listeners_does_not_iterate_over_the_topics() -> None:
    def costly() -> Iterator[Topic]:
        pytest.fail("there is no listener")
        yield DUE

    signals = Signals()
    signals.publish(costly())
    signals.publish_all()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (queue_topic("a"), queue_topic("A")),
        (queue_topic("a"), job_topic(b"a")),
        (queue_topic(""), DUE),
        (queue_topic("due"), DUE),
        (queue_topic("cancel"), CANCEL),
        (DUE, CANCEL),
    ],
)
def test_different_topics_never_collide(one: Topic, other: Topic) -> None:
    signals = Signals()
    with signals.listen([one]) as event:
        signals.publish([other])
        assert not event.is_set()


async def test_a_waiting_task_is_woken_when_its_topic_is_published() -> None:
    signals = Signals()
    listening = asyncio.Event()

    async def wait() -> None:
        with signals.listen([EMAIL]) as event:
            listening.set()
            await event.wait()

    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as tasks:
        tasks.create_task(wait())
        await listening.wait()
        signals.publish([EMAIL])
    assert not signals.topics


# A large fleet.


def lots(waiting: int) -> list[float | None]:
    """Return when each worker of a fleet looks, with evenly distributed lots."""
    return [look_after(waiting, number / waiting) for number in range(waiting)]


def test_all_workers_of_a_small_fleet_look_at_once() -> None:
    assert lots(FEW) == [0.0] * FEW
    assert look_after(0, 0.99) == 0.0, "a process that has not read the lead looks"


@pytest.mark.parametrize("waiting", [17, 300, 1000, 10_000])
def test_of_a_large_fleet_a_bounded_number_looks(waiting: int) -> None:
    delays = lots(waiting)
    assert delays.count(0.0) == 4
    assert len([delay for delay in delays if delay is not None]) == FEW
    assert delays.count(None) == waiting - FEW


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Signals]:
    """Return the signals of a process in a fleet of a thousand, which draws the given lot."""

    def with_lot(lot: float) -> Signals:
        monkeypatch.setattr("dayjob.runtime.entropy.fraction", lambda: lot)
        signals = Signals()
        signals.waiting = lambda queue: 1000 if queue == "email" else 0
        return signals

    return with_lot


async def test_a_process_looks_at_once_later_or_not_by_its_lot(fleet: Callable[[float], Signals]) -> None:
    for lot, at_once, ever in ((0.0039, True, True), (0.0079, False, True), (0.0161, False, False)):
        signals = fleet(lot)
        with signals.listen([EMAIL]) as event, signals.listen([IMAGES]) as images:
            signals.publish_received([EMAIL, IMAGES])
            assert images.is_set(), "few wait for this queue"
            assert event.is_set() is at_once
            if ever:
                await asyncio.wait_for(event.wait(), BOUND)
            signals.publish([EMAIL])
            assert event.is_set(), "a signal of this process wakes always"


async def test_each_claim_of_a_process_counts(fleet: Callable[[float], Signals]) -> None:
    signals = fleet(0.0161)
    with signals.listen([EMAIL]) as one, signals.listen([EMAIL]), signals.listen([queue_topic("")]):
        signals.publish_received([EMAIL])
        await asyncio.wait_for(one.wait(), BOUND)


def test_a_look_again_wakes_all_but_the_followers_of_a_leader() -> None:
    signals = Signals()
    with signals.listen([EMAIL]) as claim, signals.listen([LEAD_DOCUMENT]) as lead:
        signals.look_again()
        assert (claim.is_set(), lead.is_set()) == (True, False)
        signals.publish_all()
        assert lead.is_set()
