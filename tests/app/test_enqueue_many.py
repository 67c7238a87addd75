"""Many calls in one atomic batch, and bound calls."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import HIGH, App
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
    with pytest.raises(ValueError, match="10,001"):
        keep.enqueue_many([(number,) for number in range(10_001)])
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
