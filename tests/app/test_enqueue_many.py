"""Many calls in one atomic batch or in several, and bound calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest

from dayjob import HIGH, App
from dayjob.task import CHUNK
from tests.support.app_runs import ajobs, jobs, run


def test_tuples_mappings_and_bound_calls_make_one_batch(app: App) -> None:
    got: list[Any] = []

    @app.task
    def add(a: int, b: int = 10) -> int:
        got.append((a, b))
        return a + b

    handles = add.enqueue_many([(1, 2), {"a": 3}, {"b": 1, "a": 4}, add.bind(5, b=6), (7,)])
    assert [handle.created for handle in handles] == [True] * 5
    assert [stored.id for stored in jobs(app)] == [handle.id for handle in handles]
    run(app)
    assert [handle.result(timeout=0) for handle in handles] == [3, 13, 5, 11, 17]


async def test_aenqueue_many_accepts_any_iterable(app: App) -> None:
    @app.task
    async def keep(a: int) -> None: ...

    async with app:
        handles = await keep.aenqueue_many((number,) for number in range(100))
        assert len({handle.id for handle in handles}) == 100
        assert await keep.aenqueue_many([]) == []
        assert len(await ajobs(app)) == 100


def test_one_wrong_call_in_a_batch_stores_none(app: App) -> None:
    @app.task
    def keep(a: int) -> None: ...

    for wrong in (("x",), (), (1, 2), {"b": 1}):
        with pytest.raises(TypeError, match="keep"):
            keep.enqueue_many([(1,), wrong, (2,)])
    stranger: list[Any] = [[1], "text", 5, None, keep]
    for strange in stranger:
        with pytest.raises(TypeError, match=r"pass a tuple, a mapping, or .*keep.bind\(\)"):
            keep.enqueue_many([(1,), strange])
    with pytest.raises(ValueError, match="more than 10,000 calls in one batch: pass atomic=False"):
        keep.enqueue_many((number,) for number in count())
    assert jobs(app) == []


def test_options_of_using_apply_to_all_calls_but_bound_ones(app: App) -> None:
    @app.task
    def keep(a: int) -> None: ...

    keep.using(priority=HIGH).enqueue_many([(1,), keep.using(tenant="acme").bind(2)])
    assert [(stored.priority, stored.tenant) for stored in jobs(app)] == [(HIGH, None), (1000, "acme")]


def test_a_call_bound_by_another_task_is_refused(app: App) -> None:
    @app.task(name="one")
    def one(a: int) -> None: ...

    @app.task(name="other")
    def other(a: int) -> None: ...

    with pytest.raises(TypeError, match="'other' was bound, and this is 'one'"):
        one.enqueue_many([other.bind(1)])
    assert jobs(app) == []


# Any number of calls.


def commits(app: App, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that gets the number of jobs of each commit from now on."""
    sizes: list[int] = []
    broker = app.call(app.opened)
    store = broker.enqueue_many

    async def counting(stored: Any, **options: Any) -> Any:
        sizes.append(len(stored))
        return await store(stored, **options)

    monkeypatch.setattr(broker, "enqueue_many", counting)
    return sizes


def test_a_generator_is_stored_in_several_commits(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def keep(a: int) -> None: ...

    sizes = commits(app, monkeypatch)
    asked: list[int] = []

    def calls() -> Iterator[tuple[int]]:
        for number in range(2 * CHUNK + 3):
            asked.append(sum(sizes))
            yield (number,)

    handles = keep.enqueue_many(calls(), atomic=False)
    assert [handle.id for handle in handles] == [stored.id for stored in jobs(app)]
    assert sizes == [CHUNK, CHUNK, 3]
    assert asked[-1] == 2 * CHUNK, "the generator is read as the jobs are stored"


def test_a_commit_is_bounded_by_its_bytes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def keep(a: str) -> None: ...

    sizes = commits(app, monkeypatch)
    keep.enqueue_many([("x" * 900_000,) for _ in range(12)], atomic=False)
    assert sizes == [10, 2]


async def test_an_asynchronous_iterable_is_stored(app: App) -> None:
    @app.task
    async def keep(a: int) -> None: ...

    async def calls() -> AsyncIterator[tuple[int]]:
        for number in range(CHUNK + 1):
            yield (number,)

    async with app:
        assert len(await keep.aenqueue_many(calls(), atomic=False)) == CHUNK + 1
        assert len(await keep.using(priority=HIGH).aenqueue_many(calls())) == CHUNK + 1
        assert len(await ajobs(app)) == 2 * CHUNK + 2
        assert await keep.aenqueue_many([], atomic=False) == []


def test_an_error_in_the_middle_has_the_number_of_stored_calls(app: App) -> None:
    @app.task
    def keep(a: int) -> None: ...

    calls: list[Any] = [(number,) for number in range(CHUNK + 5)]
    with pytest.raises(TypeError, match="keep") as refused:
        keep.enqueue_many([*calls, ("wrong",)], atomic=False)
    assert refused.value.__notes__ == [f"The first {CHUNK:,} calls are stored."]
    assert len(jobs(app)) == CHUNK
    with pytest.raises(TypeError, match="keep") as refused:
        keep.enqueue_many([("wrong",)], atomic=False)
    assert not hasattr(refused.value, "__notes__")
