"""The heartbeats of a supervisor's children: collected by the supervisor, stored by one child."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dayjob.broker.worker_registry import Beat
from dayjob.cli.worker.beat_relay import BeatRelay
from dayjob.cli.worker.supervisor import Child
from dayjob.cli.worker.supervisor_link import CONFIRM, STORE, Confirmed, Shared, SupervisorLink, ToStore
from dayjob.worker import shared_beats
from tests.support.bound import BOUND
from tests.support.workers import until, with_timeout

STORAGE = b"storage"
URL = "sqlite:///jobs.db"


class Receiver:
    """A child that records its messages."""

    def __init__(self, relay: BeatRelay, id: str) -> None:
        self._relay = relay
        self.id = id
        self.to_store: list[ToStore] = []
        self.confirmed: list[Confirmed] = []

    def send(self, sent: bytes) -> None:
        kind, payload = sent[:1], sent[5:]
        assert kind in (STORE, CONFIRM)
        if kind == STORE:
            self.to_store.append(msgspec.msgpack.decode(payload, type=ToStore))
        else:
            self.confirmed.append(msgspec.msgpack.decode(payload, type=Confirmed))

    def share(self, number: int = 1, storage: bytes = STORAGE, limit: float = BOUND) -> None:
        beats = (Beat(self.id, b"old", b"new"),)
        self._relay.share(self, msgspec.msgpack.encode(Shared(number, storage, limit, beats)))

    def reply(self, number: int = 1, stored: bool = True) -> None:
        self._relay.stored(self, msgspec.msgpack.encode(Confirmed(number, stored)))

    @property
    def batches(self) -> list[list[str]]:
        return [[beat.id for beat in batch.beats] for batch in self.to_store]


def children(count: int = 3) -> list[Receiver]:
    relay = BeatRelay(lambda: count)
    return [Receiver(relay, id) for id in "abcdefgh"[:count]]


@pytest.mark.parametrize("stored", [True, False])
async def test_the_first_child_stores_the_heartbeats_of_all_and_the_others_get_its_reply(
    stored: bool,
) -> None:
    a, b, c = children()
    for number, child in enumerate((a, b, c)):
        child.share(number)
    assert (a.batches, b.batches, c.batches) == ([["b", "c"]], [], [])
    assert b.confirmed == []
    a.reply(0, stored)
    assert (a.confirmed, b.confirmed, c.confirmed) == ([], [Confirmed(1, stored)], [Confirmed(2, stored)])


async def test_a_frozen_child_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_beats, "LONGEST_WINDOW", 0.01)
    a, b, _ = children()
    a.share()
    b.share()
    await until(lambda: a.batches == [["b"]])


async def test_the_heartbeat_of_a_child_that_has_ended_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_beats, "LONGEST_WINDOW", 0.01)
    a, b, c = children()
    for child in (a, b):
        child.share()
    a._relay.forget(a)
    c.share()
    await until(lambda: b.batches == [["c"]])
    assert a.batches == []


async def test_the_others_are_unconfirmed_at_once_if_the_child_that_stores_ends() -> None:
    a, b, c = children()
    for child in (a, b, c):
        child.share()
    a._relay.forget(a)
    assert b.confirmed == c.confirmed == [Confirmed(1, False)]
    b.share(2)
    c.share(2)
    a.share(2)
    assert b.batches == [["c", "a"]], "the next batch is stored by another one"


async def test_the_others_are_unconfirmed_soon_if_the_child_that_stores_freezes() -> None:
    a, b = children(2)
    a.share(limit=0.02)
    b.share()
    await until(lambda: b.confirmed == [Confirmed(1, False)])
    a.reply()
    assert b.confirmed == [Confirmed(1, False)], "one reply only"


async def test_a_late_reply_does_not_confirm_a_later_batch() -> None:
    a, b = children(2)
    a.share(1)
    b.share(1)
    a.share(2)
    assert b.confirmed == [Confirmed(1, False)], "it stores another batch"
    b.share(2)
    a.reply(1)
    assert b.confirmed == [Confirmed(1, False)]
    a.reply(2)
    assert b.confirmed == [Confirmed(1, False), Confirmed(2, True)]


async def test_heartbeats_of_different_storages_are_in_different_batches() -> None:
    """A restarted child may have another version of the app, with another URL."""
    a, b, c, d = children(4)
    for child, storage in ((a, b"1"), (b, b"2"), (c, b"1"), (d, b"2")):
        child.share(storage=storage, limit=0.04)
    await until(lambda: a.batches == [["c"]] and b.batches == [["d"]])


# The link.


class Tree:
    """The links of some children to one supervisor, in this process."""

    def __init__(self) -> None:
        self.relay = BeatRelay(lambda: len(self.links))
        self.links: list[SupervisorLink] = []
        self.children: list[Child] = []
        self.stored: list[list[str]] = []
        self.reply = True

    async def add(self) -> None:
        ours, theirs = socket.socketpair()
        process: Any = SimpleNamespace(returncode=None, pid=os.getpid(), kill=lambda: None)
        self.children.append(Child(process, *await asyncio.open_connection(sock=ours), self.relay))
        link = SupervisorLink(theirs.detach(), shutdown_timeout=10**6)
        worker: Any = SimpleNamespace(name="worker", stop=lambda: None)
        link.attach(worker)
        self.links.append(link)

    async def store(self, beats: Sequence[Beat]) -> bool:
        self.stored.append([beat.id for beat in beats])
        return self.reply

    async def share(self, link: int, limit: float = BOUND) -> bool:
        beat = Beat(f"worker {link}", b"old", b"new")
        async with asyncio.timeout(limit):
            return await self.links[link].share(URL, [beat], self.store, limit)

    async def share_all(self) -> list[bool]:
        return await with_timeout(asyncio.gather(*(self.share(link) for link in range(len(self.links)))))

    def end_supervisor(self) -> None:
        for child in self.children:
            child._reading.cancel()
            child._writer.transport.abort()


@pytest.fixture
async def tree() -> AsyncIterator[Tree]:
    tree = Tree()
    for _ in range(3):
        await tree.add()
    yield tree
    tree.end_supervisor()


@pytest.mark.parametrize("stored", [True, False])
async def test_one_child_stores_the_heartbeats_of_all_children(tree: Tree, stored: bool) -> None:
    tree.reply = stored
    for _ in range(3):
        assert await tree.share_all() == [stored] * 3
    assert [sorted(batch) for batch in tree.stored] == [["worker 0", "worker 1", "worker 2"]] * 3


async def test_a_child_stores_its_own_heartbeats_for_a_while_if_the_supervisor_does_not_reply(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree.relay, "share", lambda child, payload: None)
    with pytest.raises(TimeoutError):
        await tree.share(0, limit=0.05)
    assert not tree.links[0].is_available
    assert tree.links[1].is_available


async def test_an_old_batch_is_not_stored(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor was frozen, or the child was: all have stored their own heartbeats meanwhile."""
    replies: list[bytes] = []
    held: list[tuple[Any, bytes]] = []
    monkeypatch.setattr(tree.relay, "stored", lambda child, payload: replies.append(payload))
    monkeypatch.setattr(tree.relay, "share", lambda child, payload: held.append((child, payload)))
    with pytest.raises(TimeoutError):
        await tree.share(0, limit=0.05)
    for child, payload in held:
        BeatRelay.share(tree.relay, child, payload)
    await until(lambda: replies == [msgspec.msgpack.encode(Confirmed(1, False))])
    assert tree.stored == []


async def test_a_child_stores_its_own_heartbeats_if_the_supervisor_is_gone(tree: Tree) -> None:
    sharing = asyncio.ensure_future(tree.share(0))
    await until(lambda: tree.relay._open)
    tree.end_supervisor()
    assert await with_timeout(sharing) is False
    await until(lambda: not any(link.is_available for link in tree.links))
