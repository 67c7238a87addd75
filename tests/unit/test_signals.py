"""Signals wake the listeners of their topic, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dayjob.runtime.signals import CANCEL, DUE, Signals, Topic, job_topic, queue_topic
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
