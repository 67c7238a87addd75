"""The layout of keys and values: distinct keys, ordered scans, few writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayjob import Broker, JobState, NewJob, Retention
from dayjob.engines.base import DocumentWrite, Insertion
from dayjob.engines.record import Corrupt, new_record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.store_thread import StoreThread
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.damage import open_thread
from tests.support.arrange import quiet

ids = st.binary(min_size=16, max_size=16)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
times = st.integers(0, 2**62)


@given(ids, ids, texts, texts, times)
def test_no_two_keys_are_equal(one: bytes, other: bytes, name: str, another: str, time: int) -> None:
    made: dict[tuple[object, ...], bytes] = {
        ("layout",): keys.LAYOUT_KEY,
        ("owner",): keys.OWNER,
        **{("job", key): keys.job(key) for key in (one, other)},
        **{("state", key): keys.state(key) for key in (one, other)},
        **{
            ("finished", state, key): keys.finished(state, key)
            for state in keys.FINISHED_STATES
            for key in (one, other)
        },
        **{("removal", time, key): keys.removal(time, key) for key in (one, other)},
        **{
            ("dead", index, text, key): row
            for key in (one, other)
            for text in (name, another)
            for index, row in enumerate(keys.dead(text, time, key))
            if index or text == name
        },
        **{("queue", text): keys.queue(text) for text in (name, another)},
        **{("kv", text): keys.kv(text.encode()) for text in (name, another)},
        **{
            ("document", text, other): keys.document(text, other)
            for text in ("k", "kk")
            for other in (name, another)
        },
        ("claim", time): keys.claim(time),
    }
    for (what, key), (else_, another_key) in combinations(made.items(), 2):
        assert key != another_key, f"{what} and {else_}"


@given(st.lists(st.tuples(times, ids), min_size=2, max_size=5))
def test_removals_are_ordered_by_time(moments: list[tuple[int, bytes]]) -> None:
    stored = [keys.removal(time, key) for time, key in moments]
    assert sorted(stored) == [keys.removal(time, key) for time, key in sorted(moments)]
    assert [keys.moment_of(one) for one in stored] == moments


@given(texts, st.lists(st.tuples(times, ids), min_size=2, max_size=5))
def test_dead_jobs_are_ordered_by_finish_time(name: str, moments: list[tuple[int, bytes]]) -> None:
    rows = [keys.dead(name, *one) for one in moments]
    for queue, stored in ((None, [row for row, _ in rows]), (name, [row for _, row in rows])):
        assert sorted(stored) == [keys.dead_prefix(queue) + keys.moment(*one) for one in sorted(moments)]
        assert [keys.moment_of(one) for one in stored] == moments


@given(texts)
def test_a_queue_s_name_is_read_back(name: str) -> None:
    assert keys.name_of(keys.queue(name)) == name


@given(texts)
def test_a_document_s_kind_and_name_are_read_back(name: str) -> None:
    assert keys.document_parts(keys.document("k", name)) == ("k", name)


@given(st.binary(max_size=200), st.integers(0, 80))
def test_any_value_is_decoded_or_raises_corrupt(value: bytes, cut: int) -> None:
    """No other error: for garbage, and for a valid value that is cut or has a byte replaced."""
    job = Insertion(bytes(16), "q", "t", b"data", 1, 3, {"h": "v"})
    good = values.new_job(values.head_of(new_record(job, 5, None, 5), 5), job)
    for stored in (value, good[:cut], good[:cut] + value[:1] + good[cut + 1 :]):
        for read in (values.job_head, values.job_parts):
            with suppress(Corrupt):
                read(stored)
        for kind in (values.Changed, values.Claimed, values.Queue, values.Owner, values.StoredDocument):
            with suppress(Corrupt):
                values.decode(kind, stored)
        assert values.finished(bytes(16), JobState.DEAD, stored).to_job().state is JobState.DEAD


# The number of writes of each transition, as documented in ``keys``.


class Writes:
    """Counts the rows that calls write, except the counters of queues."""

    def __init__(self, thread: StoreThread, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rows: list[bytes] = []
        write = thread._database.write

        def counted(changes: dict[bytes, bytes | None]) -> object:
            self._rows += [key for key in changes if not key.startswith((keys.QUEUE, keys.OWNER))]
            return write(changes)

        monkeypatch.setattr(thread._database, "write", counted)

    async def of(self, call: Awaitable[object]) -> int:
        self._rows.clear()
        await call
        return len(self._rows)


@pytest.fixture
def count(url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Writes]:
    return lambda: Writes(open_thread(url), monkeypatch)


async def test_the_writes_of_each_transition(url: str, count: Callable[[], Writes]) -> None:
    async with Broker(url, config=QUIET) as broker:
        writes = count()
        assert await writes.of(broker.enqueue_many([NewJob("q") for _ in range(100)])) == 100
        jobs = []

        async def claim() -> None:
            jobs.extend(await broker.claim("q", limit=100))

        assert await writes.of(claim()) == 1
        acked, retried, released, renewed, *rest = jobs
        assert await writes.of(broker.ack(acked)) == 1
        assert await writes.of(broker.nack(retried, "x", delay=60)) == 1
        assert await writes.of(broker.release(released)) == 1
        assert await writes.of(broker.renew(renewed)) == 1
        assert await writes.of(broker.ack(renewed)) == 2
        *most, last = rest
        for job in most:
            await broker.ack(job)
        assert await writes.of(broker.ack(last)) == 2, "the claim's last job"
        assert await writes.of(broker.stats("q")) == 0
        assert await writes.of(broker.jobs("q")) == 0
        document = DocumentWrite("k", "a", None, b"1")
        assert await writes.of(broker._engine.compare_and_set([document])) == 1
        assert await writes.of(broker._engine.compare_and_set([document])) == 0, "it is not as expected"
        assert await writes.of(broker._engine.documents("k")) == 0
        assert await writes.of(broker.promote()) == await writes.of(broker.reap()) == 0


@pytest.mark.parametrize(("kept", "expected"), [(3600, 4), (None, 2)])
async def test_the_writes_of_an_ack_that_is_kept(
    url: str, count: Callable[[], Writes], kept: float | None, expected: int
) -> None:
    """Each is the last job of its claim, which costs one more."""
    async with Broker(url, config=quiet(retention=Retention(done=kept))) as broker:
        await broker.enqueue("q")
        (job,) = await broker.claim("q")
        assert await count().of(broker.ack(job)) == expected


@pytest.mark.parametrize(("kept", "expected"), [(3600, 6), (None, 5)])
async def test_the_writes_of_a_dead_letter(
    url: str, count: Callable[[], Writes], kept: float | None, expected: int
) -> None:
    async with Broker(url, config=quiet(retention=Retention(dead=kept))) as broker:
        await broker.enqueue("q")
        (job,) = await broker.claim("q")
        assert await count().of(broker.dead_letter(job, "no good")) == expected


async def test_a_dedup_key_released_by_a_claim_stays_with_its_next_holder_after_opening(url: str) -> None:
    """Both jobs are stored with the key. Only the claim shows that the first has released it."""
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q", dedup_key="k")
        (first,) = await broker.claim("q")
        second = await broker.enqueue("q", dedup_key="k")
    async with Broker(url, config=QUIET) as broker:
        assert (await broker.enqueue("q", dedup_key="k")).id == second.id
        await broker.ack(first)
        assert (await broker.enqueue("q", dedup_key="k")).id == second.id
