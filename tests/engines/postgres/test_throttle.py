"""The throttle: the first notification goes with its commit, later ones at the end of the window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dayjob.engines.postgres import notifier
from dayjob.engines.postgres.notifier import (
    EVERYTHING,
    RETURNED,
    Item,
    Throttle,
    decode_message,
    encode_message,
    encode_messages,
    topic_item,
)
from dayjob.runtime.signals import DUE, job_topic, queue_topic
from dayjob.testing import ManualClock
from tests.support.workers import with_timeout

Q: Item = ("queue", "q", 1000)
R: Item = ("queue", "r", 1000)

NEVER = 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(notifier, "SYSTEM", clock)
    return clock


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def choose(seconds: float) -> None:
        monkeypatch.setattr(notifier, "SHORTEST_WINDOW", seconds)

    choose(NEVER)
    return choose


@pytest.fixture
async def sent() -> asyncio.Queue[list[str]]:
    return asyncio.Queue()


@pytest.fixture
async def throttled(
    clock: ManualClock, window: Callable[[float], None], sent: asyncio.Queue[list[str]]
) -> Throttle:
    """A throttle on a clock that stands still, so that only the timer ends a window."""
    return Throttle(sent.put_nowait)


def items(messages: str | list[str] | None) -> list[Item]:
    assert messages is not None
    texts = [messages] if isinstance(messages, str) else messages
    return [item for text in texts for item in decode_message(text)[1]]


def commit(throttled: Throttle, items: list[Item]) -> str | None:
    """Return the message that a commit with these items sends."""
    with throttled.with_commit(items) as message:
        return message


# The window.


async def test_the_first_notification_of_a_topic_goes_with_its_commit(throttled: Throttle) -> None:
    message = commit(throttled, [Q, R])
    assert items(message) == [Q, R]
    assert decode_message(message or "")[0] == throttled.sender


async def test_a_second_notification_in_the_window_is_held(
    throttled: Throttle, sent: asyncio.Queue[list[str]]
) -> None:
    commit(throttled, [Q])
    assert commit(throttled, [Q]) is None
    assert items(commit(throttled, [Q, R])) == [R], "each topic has its own window"
    assert sent.empty()
    assert items(throttled.close()) == [Q]


async def test_a_notification_after_the_window_goes_with_its_commit(
    throttled: Throttle, clock: ManualClock
) -> None:
    commit(throttled, [Q])
    clock.advance(NEVER)
    assert items(commit(throttled, [Q])) == [Q]
    assert throttled.close() == []


async def test_no_items_give_no_message(throttled: Throttle, sent: asyncio.Queue[list[str]]) -> None:
    assert commit(throttled, []) is None
    throttled.announce([])
    assert sent.empty()
    assert throttled.close() == []


async def test_a_change_that_is_committed_already_is_sent_on_its_own(
    throttled: Throttle, sent: asyncio.Queue[list[str]]
) -> None:
    throttled.announce([Q])
    assert items(sent.get_nowait()) == [Q]
    throttled.announce([Q])
    assert sent.empty()
    assert items(throttled.close()) == [Q]


async def test_a_held_notification_is_not_sent_before_its_commit(
    throttled: Throttle, window: Callable[[float], None], sent: asyncio.Queue[list[str]]
) -> None:
    commit(throttled, [Q])
    window(0.001)
    over = asyncio.Event()
    with throttled.with_commit([Q]):
        asyncio.get_running_loop().call_later(0.05, over.set)
        await with_timeout(over.wait())
        assert sent.empty(), "listeners could not see the rows yet"
    assert items(await with_timeout(sent.get())) == [Q]


# The end of the window.


async def test_held_notifications_are_sent_in_one_message_at_the_end_of_the_window(
    throttled: Throttle, window: Callable[[float], None], sent: asyncio.Queue[list[str]]
) -> None:
    commit(throttled, [Q, R])
    window(0.01)
    for _ in range(100):
        assert commit(throttled, [Q, R]) is None
    [message] = await with_timeout(sent.get())
    assert sorted(items(message)) == [Q, R]
    assert sent.empty()
    assert throttled.close() == []


async def test_the_end_of_a_window_starts_another(
    throttled: Throttle, window: Callable[[float], None], sent: asyncio.Queue[list[str]], clock: ManualClock
) -> None:
    commit(throttled, [Q])
    window(0.01)
    clock.advance(0.005)
    commit(throttled, [Q])
    await with_timeout(sent.get())
    clock.advance(0.006)
    window(NEVER)
    assert commit(throttled, [Q]) is None, "it was sent just now"
    throttled.close()


async def test_a_held_notification_has_the_lowest_priority_of_its_jobs(throttled: Throttle) -> None:
    commit(throttled, [Q])
    for priority in (500, 100, 900):
        commit(throttled, [("queue", "q", priority)])
    assert items(throttled.close()) == [("queue", "q", 100)]
    commit(throttled, [("queue", "q", 100)])
    commit(throttled, [("queue", "q", RETURNED)])
    assert items(throttled.close()) == [("queue", "q", RETURNED)]


async def test_all_waits_for_jobs_share_a_window(throttled: Throttle, sent: asyncio.Queue[list[str]]) -> None:
    """A process may start to wait for thousands of jobs at once."""
    first, *rest = [("wait", number.to_bytes(16).hex(), 0) for number in range(5000)]
    for wait in (first, *rest):
        throttled.announce([wait])
    assert items(sent.get_nowait()) == [first]
    assert sent.empty()
    messages = throttled.close()
    assert items(messages) == rest, "each wait is announced"
    assert max(map(len, messages)) < 8000
    assert len(messages) < 100


async def test_many_ends_of_jobs_are_sent_together(
    throttled: Throttle, sent: asyncio.Queue[list[str]]
) -> None:
    ends = [topic_item(job_topic(number.to_bytes(16))) for number in range(300)]
    throttled.announce(ends)
    assert items(sent.get_nowait()) == ends
    throttled.announce(ends)
    assert sent.empty()


async def test_a_closed_throttle_sends_nothing(
    throttled: Throttle, window: Callable[[float], None], sent: asyncio.Queue[list[str]]
) -> None:
    commit(throttled, [Q])
    window(0.001)
    assert commit(throttled, [Q]) is None
    assert items(throttled.close()) == [Q]
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, over.set)
    await with_timeout(over.wait())
    assert sent.empty()


async def test_the_number_of_remembered_topics_is_bounded(throttled: Throttle) -> None:
    for number in range(notifier._MAX_TOPICS + 1):
        commit(throttled, [("queue", f"q{number}", 0)])
    assert items(commit(throttled, [("queue", "q0", 0)])) == [("queue", "q0", 0)]


# Messages.


def test_a_message_has_its_sender_and_topics() -> None:
    topics = [queue_topic('ü "q"\n\''), job_topic(b"\x00\xff" * 8), DUE]
    items = [topic_item(topic) for topic in topics]
    assert items == [("queue", 'ü "q"\n\'', RETURNED), ("job", "00ff" * 8, RETURNED), ("due", "", RETURNED)]
    assert decode_message(encode_message("me", items)) == ("me", items)
    assert topic_item(queue_topic("q"), 7) == ("queue", "q", 7)


def test_a_message_that_would_be_too_long_stands_for_everything() -> None:
    few = [("queue", "🐘" * 50, number) for number in range(30)]
    many = [("queue", "🐘" * 50, number) for number in range(40)]
    assert decode_message(encode_message("me", few)) == ("me", few)
    message = encode_message("me", many)
    assert decode_message(message) == ("me", [EVERYTHING])
    assert [decode_message(text) for text in encode_messages("me", many)] == [
        ("me", many[:20]), ("me", many[20:])
    ]  # fmt: skip
    for text in (encode_message("me", few), message):
        assert len(text.encode()) < 8000, "the limit of the server"


@pytest.mark.parametrize(
    "text", ["", "text", "{}", "[]", '["me"]', '["me", [["queue", "q"]]]', '["me", [["queue", 1, 2]]]']
)
def test_a_message_that_can_not_be_decoded_stands_for_everything(text: str) -> None:
    assert decode_message(text) == ("", [EVERYTHING])


# The length of the window.


async def test_the_window_is_twice_as_long_as_a_commit_that_notifies_within_bounds(
    clock: ManualClock,
) -> None:
    throttled = Throttle(lambda messages: None)

    def commits(seconds: float) -> float:
        for _ in range(50):
            with throttled.with_commit([Q]) as message:
                assert message is not None
                clock.advance(seconds)
            clock.advance(1)
            with throttled.with_commit([]):
                clock.advance(1)  # It does not notify, so it does not count.
        return throttled.window

    assert throttled.window == notifier.SHORTEST_WINDOW
    assert commits(0.0015) == pytest.approx(0.003, rel=0.1)
    assert commits(15) == notifier.LONGEST_WINDOW
    assert not throttled.crowded
    assert commits(0.0001) == notifier.SHORTEST_WINDOW


async def test_a_held_notification_waits_for_the_end_of_the_window_that_has_begun(
    throttled: Throttle, window: Callable[[float], None], sent: asyncio.Queue[list[str]], clock: ManualClock
) -> None:
    commit(throttled, [Q])
    clock.advance(NEVER - 0.01)
    assert commit(throttled, [Q]) is None
    assert items(await with_timeout(sent.get())) == [Q], "a hundredth of a second is left, not an hour"
    with throttled.with_commit([R]):
        clock.advance(NEVER + 1)
        assert commit(throttled, [Q]) is not None
    with throttled.with_commit([Q]):
        clock.advance(NEVER + 1)  # The window ends during the commit.
    assert items(await with_timeout(sent.get())) == [Q]


# Many listeners.


async def test_with_many_listeners_all_topics_share_a_longer_window(
    throttled: Throttle, clock: ManualClock, window: Callable[[float], None]
) -> None:
    window(0.002)
    throttled.listeners = 25
    assert not throttled.crowded
    throttled.listeners = 400
    assert throttled.window == pytest.approx(0.08), "a tenth of the server's time for one process"
    sent = 0
    for _ in range(1000):  # A second with an enqueue into one of two queues each millisecond.
        sent += commit(throttled, [Q]) is not None
        sent += commit(throttled, [R]) is not None
        clock.advance(0.001)
    assert sent <= 1 / 0.08 + 2
    other: Item = ("queue", "other", 1000)
    assert items(commit(throttled, [other])) == [other], "a job on an idle queue is announced at once"
    assert commit(throttled, [other]) is None
    throttled.close()


async def test_what_is_held_for_many_listeners_is_sent_in_one_message(
    throttled: Throttle, window: Callable[[float], None], sent: asyncio.Queue[list[str]]
) -> None:
    window(0.002)
    throttled.listeners = 100
    commit(throttled, [Q])
    for number in range(20):
        throttled.announce([topic_item(job_topic(bytes([number] * 16)))])
    assert len(items(await with_timeout(sent.get()))) == 20
    assert sent.empty()


async def test_the_listeners_are_counted_after_many_notifications(clock: ManualClock) -> None:
    counts: list[float] = []
    throttled = Throttle(lambda messages: None, lambda: counts.append(clock.elapsed()))
    for _ in range(notifier.COUNT_EVERY - 1):
        commit(throttled, [Q])
        clock.advance(0.1)
    assert counts == [], "a process that sends little does not count"
    for _ in range(700):
        commit(throttled, [Q])
        clock.advance(0.1)
    assert len(counts) == 3, "each half minute"
    assert throttled.may_send([Q])
