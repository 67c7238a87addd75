"""What goes out and when: the first news with its commit, what follows at the end of the window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dayjob.engines.postgres import news
from dayjob.engines.postgres.news import EVERYTHING, RETURNED, Item, News
from dayjob.runtime.signals import DUE, job_topic, queue_topic
from dayjob.testing import ManualClock
from tests.support.workers import within

Q: Item = ("queue", "q", 1000)
R: Item = ("queue", "r", 1000)

NEVER = 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(news, "SYSTEM", clock)
    return clock


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def choose(seconds: float) -> None:
        monkeypatch.setattr(news, "WINDOW", seconds)

    choose(NEVER)
    return choose


@pytest.fixture
async def sent() -> asyncio.Queue[str]:
    return asyncio.Queue()


@pytest.fixture
async def telling(clock: ManualClock, window: Callable[[float], None], sent: asyncio.Queue[str]) -> News:
    """News on a clock that stands still, so that nothing ends a window but its timer."""
    return News(sent.put_nowait)


def items(message: str | None) -> list[Item]:
    assert message is not None
    return news.read(message)[1]


def commit(telling: News, told: list[Item]) -> str | None:
    """What a commit carries that tells of these, and is over."""
    with telling.with_commit(told) as message:
        return message


# The window.


async def test_the_first_news_of_a_topic_goes_with_its_commit(telling: News) -> None:
    message = commit(telling, [Q, R])
    assert items(message) == [Q, R]
    assert news.read(message or "")[0] == telling.sender


async def test_what_follows_within_the_window_is_held(telling: News, sent: asyncio.Queue[str]) -> None:
    commit(telling, [Q])
    assert commit(telling, [Q]) is None
    assert items(commit(telling, [Q, R])) == [R], "each topic has a window of its own"
    assert sent.empty()
    assert items(telling.close()) == [Q]


async def test_after_the_window_it_goes_with_its_commit_again(telling: News, clock: ManualClock) -> None:
    commit(telling, [Q])
    clock.advance(NEVER)
    assert items(commit(telling, [Q])) == [Q]
    assert telling.close() is None


async def test_nothing_to_tell_is_no_message(telling: News, sent: asyncio.Queue[str]) -> None:
    assert commit(telling, []) is None
    telling.soon([])
    assert sent.empty()
    assert telling.close() is None


async def test_what_is_committed_already_is_sent_by_itself(telling: News, sent: asyncio.Queue[str]) -> None:
    telling.soon([Q])
    assert items(sent.get_nowait()) == [Q]
    telling.soon([Q])
    assert sent.empty()
    assert items(telling.close()) == [Q]


async def test_what_is_held_waits_for_its_commit(
    telling: News, window: Callable[[float], None], sent: asyncio.Queue[str]
) -> None:
    commit(telling, [Q])
    window(0.001)
    over = asyncio.Event()
    with telling.with_commit([Q]):
        asyncio.get_running_loop().call_later(0.05, over.set)
        await within(over.wait())
        assert sent.empty(), "whoever was told now would look in vain"
    assert items(await within(sent.get())) == [Q]


# Its end.


async def test_what_was_held_goes_out_in_one_message_when_the_window_ends(
    telling: News, window: Callable[[float], None], sent: asyncio.Queue[str]
) -> None:
    commit(telling, [Q, R])
    window(0.01)
    for _ in range(100):
        assert commit(telling, [Q, R]) is None
    message = await within(sent.get())
    assert sorted(items(message)) == [Q, R]
    assert sent.empty()
    assert telling.close() is None


async def test_the_end_of_a_window_begins_another(
    telling: News, window: Callable[[float], None], sent: asyncio.Queue[str], clock: ManualClock
) -> None:
    commit(telling, [Q])
    window(0.01)
    clock.advance(0.005)
    commit(telling, [Q])
    await within(sent.get())
    clock.advance(0.006)
    window(NEVER)
    assert commit(telling, [Q]) is None, "it was told just now"
    telling.close()


async def test_of_what_is_held_the_foremost_place_is_told(telling: News) -> None:
    commit(telling, [Q])
    for place in (500, 100, 900):
        commit(telling, [("queue", "q", place)])
    assert items(telling.close()) == [("queue", "q", 100)]
    commit(telling, [("queue", "q", 100)])
    commit(telling, [("queue", "q", RETURNED)])
    assert items(telling.close()) == [("queue", "q", RETURNED)]


async def test_what_is_closed_sends_nothing_more(
    telling: News, window: Callable[[float], None], sent: asyncio.Queue[str]
) -> None:
    commit(telling, [Q])
    window(0.001)
    assert commit(telling, [Q]) is None
    assert items(telling.close()) == [Q]
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, over.set)
    await within(over.wait())
    assert sent.empty()


async def test_a_very_long_memory_is_let_go(telling: News) -> None:
    for number in range(news._REMEMBERED + 1):
        commit(telling, [("queue", f"q{number}", 0)])
    assert items(commit(telling, [("queue", "q0", 0)])) == [("queue", "q0", 0)]


# Messages.


def test_a_message_says_who_and_what() -> None:
    topics = [queue_topic('ü "q"\n\''), job_topic(b"\x00\xff" * 8), DUE]
    told = [news.of_topic(topic) for topic in topics]
    assert told == [("queue", 'ü "q"\n\'', RETURNED), ("job", "00ff" * 8, RETURNED), ("due", "", RETURNED)]
    assert news.read(news.message("me", told)) == ("me", told)
    assert news.of_topic(queue_topic("q"), 7) == ("queue", "q", 7)


def test_a_message_that_would_be_too_long_says_that_anything_may_have_happened() -> None:
    few = [("queue", "🐘" * 50, number) for number in range(30)]
    many = [("queue", "🐘" * 50, number) for number in range(40)]
    assert news.read(news.message("me", few)) == ("me", few)
    message = news.message("me", many)
    assert news.read(message) == ("me", [EVERYTHING])
    for told in (news.message("me", few), message):
        assert len(told.encode()) < 8000, "the server takes no more"


@pytest.mark.parametrize(
    "text", ["", "text", "{}", "[]", '["me"]', '["me", [["queue", "q"]]]', '["me", [["queue", 1, 2]]]']
)
def test_what_can_not_be_read_stands_for_everything(text: str) -> None:
    assert news.read(text) == ("", [EVERYTHING])
