"""Heartbeats that workers share: one commit for all, and each worker's own commit if that one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from dayjob import App, BrokerConfig
from dayjob.broker.worker_registry import Beat
from dayjob.worker import shared_beats
from dayjob.worker.shared_beats import BeatGroup, Store
from tests.support.bound import BOUND
from tests.support.staging import turns
from tests.support.workers import until, with_timeout, working

SHORT = 0.05


class Storage:
    """Stores heartbeats. A test holds or fails the next commit."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.answer: bool | Exception = True
        self.held = False

    async def store(self, beats: Sequence[Beat]) -> bool:
        self.batches.append(sorted(beat.id for beat in beats))
        if self.held:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def group() -> BeatGroup:
    """A group of three workers."""
    group = BeatGroup("sqlite:///jobs.db")
    for _ in range(3):
        group.join()
    return group


def beat(id: str) -> Beat:
    return Beat(id, b"old", b"new")


async def share(
    group: BeatGroup, storage: Storage, *ids: str, limit: float = BOUND
) -> list[bool | BaseException]:
    sharing = (group.share(beat(id), storage.store, limit) for id in ids)
    return await with_timeout(asyncio.gather(*sharing, return_exceptions=True))


async def test_the_first_worker_stores_the_heartbeats_of_all(group: BeatGroup, storage: Storage) -> None:
    for _ in range(2):
        assert await share(group, storage, "a", "b", "c") == [True] * 3
    assert storage.batches == [["a", "b", "c"]] * 2


async def test_a_heartbeat_does_not_wait_long_for_a_worker_that_sends_none(
    group: BeatGroup, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_beats, "LONGEST_WINDOW", SHORT)
    assert await share(group, storage, "a", "b") == [True] * 2
    assert storage.batches == [["a", "b"]], "the heartbeat of the third is not stored"


async def test_all_are_unconfirmed_if_the_storage_refuses_one(group: BeatGroup, storage: Storage) -> None:
    storage.answer = False
    assert await share(group, storage, "a", "b", "c") == [False] * 3


async def test_all_are_unconfirmed_if_the_commit_fails(group: BeatGroup, storage: Storage) -> None:
    storage.answer = OSError("no connection")
    first, *others = await share(group, storage, "a", "b", "c")
    assert (type(first), others) == (OSError, [False] * 2)


async def test_all_are_unconfirmed_if_the_commit_takes_too_long(group: BeatGroup, storage: Storage) -> None:
    storage.held = True
    assert await share(group, storage, "a", "b", "c", limit=SHORT) == [False] * 3
    storage.held = False
    assert await share(group, storage, "a", "b", "c") == [True] * 3, "the next ones are shared again"


@pytest.mark.parametrize("held", [False, True])
async def test_the_others_are_unconfirmed_if_the_first_worker_stops(
    group: BeatGroup, storage: Storage, held: bool
) -> None:
    """It stops while it waits for the others, or during its commit."""
    storage.held = True
    first = asyncio.ensure_future(group.share(beat("a"), storage.store, BOUND))
    await turns()
    others = asyncio.ensure_future(share(group, storage, *("bc" if held else "b")))
    await until(lambda: len(storage.batches) == held and (held or len(group._batch) == 2))
    first.cancel()
    assert set(await with_timeout(others)) == {False}


async def test_the_heartbeat_of_a_worker_that_has_stopped_is_not_stored(
    group: BeatGroup, storage: Storage
) -> None:
    first, stopped = (asyncio.ensure_future(group.share(beat(id), storage.store, BOUND)) for id in "ab")
    await until(lambda: len(group._batch) == 2)
    stopped.cancel()
    await turns()
    assert await share(group, storage, "c") == [True]
    assert (await with_timeout(first), storage.batches) == (True, [["a", "c"]])


async def test_a_lone_worker_shares_with_no_other(storage: Storage) -> None:
    group = BeatGroup("sqlite:///jobs.db")
    group.join()
    assert not group.is_shared
    group.join()
    assert group.is_shared
    group.leave()
    assert not group.is_shared


def test_the_processes_of_a_tree_beat_at_the_same_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_beats, "_phase", 0.25)
    for now, expected in ((1000.0, 1001.25), (1001.0, 1001.25), (1001.25, 1006.25), (1003.5, 1006.25)):
        monkeypatch.setattr(shared_beats, "SYSTEM", SimpleNamespace(elapsed=lambda now=now: now))
        assert shared_beats.next_beat_at(5.0) == expected


class BrokenTree:
    """Confirms no heartbeat, or does not reply."""

    def __init__(self, replies: bool) -> None:
        self.replies = replies
        self.shared: list[str] = []
        self.is_available = True

    async def share(self, url: str, beats: Sequence[Beat], store: Store, limit: float) -> bool:
        self.shared += [beat.id for beat in beats]
        if not self.replies:
            await asyncio.Event().wait()
        return False


@pytest.fixture
def lively(monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr("dayjob.worker.registration.ALONE_INTERVAL", 0.1)
    monkeypatch.setattr("dayjob.worker.registration.BEATS", 20)
    monkeypatch.setattr("dayjob.worker.registration.CONFIRMED_WITHIN", 40)
    monkeypatch.setattr(shared_beats, "_joined", None)
    monkeypatch.setattr(shared_beats, "_phase", None)
    return App("memory://", config=BrokerConfig(dead_after=2, duties=False))


@pytest.mark.parametrize("replies", [True, False])
async def test_a_worker_stores_its_own_heartbeat_if_the_tree_does_not(lively: App, replies: bool) -> None:
    tree = BrokenTree(replies)
    shared_beats.join_tree(tree)
    async with working(lively) as worker:
        await until(lambda: worker.ready)
        seen: set[int] = set()

        async def three_heartbeats() -> bool:
            seen.update(info.seen_us for info in await lively.broker.workers() if info.id == worker.id)
            return len(seen) > 3

        await until(three_heartbeats)
        assert set(tree.shared) == {worker.id}
