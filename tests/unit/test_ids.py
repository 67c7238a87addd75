"""Job ids are valid UUIDv7s, strictly increasing across clock changes, threads and forks."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from threading import Barrier, Lock
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayjob.model.job import id_key, id_text, known_key
from dayjob.runtime import entropy, ids
from dayjob.runtime.ids import IdSource, new_key
from dayjob.testing import ManualClock
from tests.support.bound import BOUND

TAIL_END = 1 << 74

TEXT = "0190a1b2-c3d4-7e5f-8a6b-7c8d9eafb0c1"
BYTES = bytes.fromhex(TEXT.replace("-", ""))


def millis(key: bytes) -> int:
    return int.from_bytes(key[:6])


def is_increasing(keys: list[bytes]) -> bool:
    return all(earlier < later for earlier, later in pairwise(keys))


def assert_uuid7(key: bytes) -> None:
    uuid = UUID(bytes=key)
    assert (uuid.version, uuid.variant) == (7, RFC_4122)


def test_an_id_is_a_uuid7_of_the_clocks_millisecond() -> None:
    clock = ManualClock()
    source = IdSource(clock)
    for _ in range(1000):
        key = source.new_key()
        assert_uuid7(key)
        assert millis(key) == clock.now() // 1000
        clock.advance(0.0015)


def test_two_sources_at_the_same_time_make_different_ids() -> None:
    clock = ManualClock()
    assert len({IdSource(clock).new_key() for _ in range(1000)}) == 1000


def test_100_000_ids_in_a_tight_loop_are_strictly_increasing() -> None:
    assert is_increasing([new_key() for _ in range(100_000)])


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Switch threads as often as the interpreter allows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(make: Callable[[], bytes], threads: int, each: int) -> list[list[bytes]]:
    start = Barrier(threads)

    def make_each() -> list[bytes]:
        start.wait(BOUND)
        return [make() for _ in range(each)]

    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(make_each) for _ in range(threads)]]


@pytest.mark.usefixtures("restless_threads")
def test_threads_make_distinct_ids_and_each_sees_its_own_increase() -> None:
    before = new_key()
    sequences = in_threads(new_key, threads=8, each=20_000)
    after = new_key()

    assert all(is_increasing(sequence) for sequence in sequences)
    keys_of_all = {key for sequence in sequences for key in sequence}
    assert len(keys_of_all) == 8 * 20_000
    assert before < min(keys_of_all)
    assert max(keys_of_all) < after


class Turnstile(ManualClock):
    """A slow clock that detects concurrent reads by a second thread."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = Lock()
        self.crowded = False

    def now(self) -> int:
        alone = self._inside.acquire(blocking=False)
        self.crowded |= not alone
        for _ in range(1000):
            pass
        if alone:
            self._inside.release()
        return super().now()


@pytest.mark.usefixtures("restless_threads")
def test_one_thread_at_a_time_makes_an_id() -> None:
    clock = Turnstile()
    in_threads(IdSource(clock).new_key, threads=8, each=200)
    assert not clock.crowded


def test_ids_increase_though_the_clock_stands_still() -> None:
    clock = ManualClock()
    source = IdSource(clock)
    keys = [source.new_key() for _ in range(10_000)]
    assert is_increasing(keys)
    assert {millis(key) for key in keys} == {clock.now() // 1000}


def test_ids_increase_though_the_clock_goes_back() -> None:
    clock = ManualClock()
    source = IdSource(clock)
    last = source.new_key()
    clock.set(clock.time - timedelta(days=1))
    keys = [last, *(source.new_key() for _ in range(1000))]
    assert is_increasing(keys)
    assert {millis(key) for key in keys} == {millis(last)}


@settings(deadline=None)
@given(st.lists(st.integers(-(10**7), 10**7), max_size=50))
def test_ids_increase_while_the_clock_jumps(jumps: list[int]) -> None:
    clock = ManualClock()
    source = IdSource(clock)
    keys = [source.new_key()]
    for jump in jumps:
        clock.set(clock.time + timedelta(microseconds=jump))
        keys.append(source.new_key())
    assert is_increasing(keys)


@pytest.mark.parametrize("tail", [TAIL_END - 1, TAIL_END - 2**16, TAIL_END - 2**34, 2**62 - 1, 2**62])
def test_ids_stay_valid_and_increase_where_the_tail_carries_over(tail: int) -> None:
    source = IdSource(ManualClock())
    source.new_key()
    source._tail = tail
    keys = [source.new_key() for _ in range(100)]
    assert is_increasing(keys)
    for key in keys:
        assert_uuid7(key)


@pytest.mark.parametrize("tail", [1, TAIL_END - 1, TAIL_END - 2**34, 2**62 - 1, 2**62 - 2**36, 2**62])
def test_the_ids_of_batches_are_valid_and_increase(tail: int) -> None:
    source = IdSource(ManualClock())
    source.new_key()
    source._tail = tail
    keys: list[bytes] = []
    for count in (0, 1, 100, 2):
        batch = source.new_keys(count)
        assert len(batch) == count
        keys += [*batch, source.new_key()]
    assert is_increasing(keys)
    for key in keys:
        assert_uuid7(key)


def test_a_tail_overflow_uses_the_next_millisecond_early() -> None:
    clock = ManualClock()
    source = IdSource(clock)
    source.new_key()
    source._tail = TAIL_END - 1
    now = clock.now() // 1000
    assert [millis(source.new_key()) for _ in range(3)] == [now + 1] * 3
    clock.advance(0.001)
    assert millis(source.new_key()) == now + 1
    clock.advance(0.001)
    assert millis(source.new_key()) == now + 2


def test_after_a_fork_the_next_id_is_in_a_later_millisecond() -> None:
    clock = ManualClock()
    source = IdSource(clock)
    before = source.new_key()
    source.forked()
    after = source.new_key()
    assert millis(after) == millis(before) + 1
    assert_uuid7(after)


def in_a_forked_child(make: Callable[[], bytes]) -> tuple[int, int]:
    """Fork a child that writes its ids into a pipe. Return its pid and the read end of the pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, make())
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def answer_of(child: int, reader: int) -> bytes:
    try:
        if not select.select([reader], [], [], 30)[0]:
            os.kill(child, signal.SIGKILL)
        parts = []
        while part := os.read(reader, 65_536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(reader)
        os.waitpid(child, 0)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
# From Python 3.12 on, fork warns if a thread of another test is still running.
may_have_threads = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@needs_fork
@may_have_threads
def test_ids_of_a_forked_child_are_greater_than_its_parents_and_never_shared() -> None:
    last_before = new_key()
    child, reader = in_a_forked_child(lambda: b"".join(new_key() for _ in range(1000)))
    parents = [new_key() for _ in range(1000)]
    answer = answer_of(child, reader)
    childs = [answer[at : at + 16] for at in range(0, len(answer), 16)]

    assert len(childs) == 1000
    assert is_increasing([last_before, *childs])
    assert is_increasing([last_before, *parents])
    assert not set(childs) & set(parents)


@needs_fork
@may_have_threads
def test_a_child_forked_while_the_lock_is_held_can_generate_ids() -> None:
    with ids._process._lock:
        child, reader = in_a_forked_child(new_key)
    assert len(answer_of(child, reader)) == 16


@needs_fork
@may_have_threads
def test_a_forked_child_draws_other_random_numbers_than_its_parent() -> None:
    child, reader = in_a_forked_child(lambda: entropy.bits(128).to_bytes(16))
    assert entropy.bits(128).to_bytes(16) != answer_of(child, reader)


@pytest.mark.parametrize(
    "spelling",
    [
        TEXT,
        TEXT.upper(),
        TEXT.replace("-", ""),
        TEXT.replace("-", "").upper(),
        f"{{{TEXT}}}",
        f"urn:uuid:{TEXT}",
        UUID(TEXT),
    ],
    ids=str,
)
def test_an_id_is_accepted_in_every_spelling(spelling: str | UUID) -> None:
    assert id_key(spelling) == BYTES
    assert known_key(spelling) == BYTES


@pytest.mark.parametrize("version", [1, 3, 4, 5, 6, 7, 8])
def test_an_id_may_be_a_uuid_of_any_version(version: int) -> None:
    text = f"0190a1b2-c3d4-{version}e5f-8a6b-7c8d9eafb0c1"
    assert id_text(id_key(text)) == text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "job-1",
        TEXT[:-1],
        f"{TEXT}0",
        TEXT.replace("a", "g"),
        f"{TEXT}\n",
        f" {TEXT}",
        f"0x{TEXT[2:]}",
        f"+{TEXT[1:]}",
        f" {TEXT[1:]}",
        f"{TEXT[:-2]}_1",
        TEXT.replace("0", "\N{FULLWIDTH DIGIT ZERO}"),
        None,
        7,
        BYTES,
    ],
    ids=ascii,
)
def test_a_value_that_is_not_a_uuid_is_refused_with_the_value(value: Any) -> None:
    with pytest.raises(ValueError, match="id=") as refusal:
        id_key(value)
    assert repr(value) in str(refusal.value)
    assert known_key(value) is None


@given(st.binary(min_size=16, max_size=16))
def test_an_ids_text_is_that_of_its_uuid_and_converts_back_to_its_bytes(key: bytes) -> None:
    assert id_text(key) == str(UUID(bytes=key))
    assert id_key(id_text(key)) == key


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_ids_have_the_same_order_as_text_and_as_bytes(one: bytes, other: bytes) -> None:
    assert (id_text(one) < id_text(other)) == (one < other)
