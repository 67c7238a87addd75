"""A function whose first parameter is a ``Context`` gets it in runs and in direct calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import pytest

import dayjob
from dayjob import App, Context, InvalidState, current
from tests.support.app_runs import run


def test_a_direct_call_gets_its_own_context(memory_app: App) -> None:
    @memory_app.task(name="t")
    def take(ctx: Context, a: int) -> tuple[Any, ...]:
        ctx.progress(0.5, "half")
        ctx.log.info("works")
        ctx.then(kv={b"k": b"v"})
        return ctx.attempt, ctx.job.task, bool(ctx.cancelled), a

    assert take(5) == (1, "t", False, 5)
    assert take(a=6) == (1, "t", False, 6)
    with pytest.raises(InvalidState, match="no job is running"):
        current()


async def test_a_direct_call_of_a_coroutine_function_is_awaited(memory_app: App) -> None:
    @memory_app.task
    async def take(ctx: Context, a: int) -> int:
        return a + ctx.attempt

    assert await take(5) == 6


def test_a_context_may_be_passed_explicitly(memory_app: App) -> None:
    seen: list[Context] = []

    @memory_app.task
    def inner(ctx: Context, a: int) -> int:
        seen.append(ctx)
        return a

    @memory_app.task
    def outer(ctx: Context) -> int:
        seen.append(ctx)
        call: Any = inner
        return int(call(ctx, 1)) + inner(2)

    handle = outer.enqueue()
    run(memory_app)
    assert handle.result(timeout=0) == 3
    assert len({id(context) for context in seen}) == 1
    assert seen[0].job.id == handle.id


def test_the_context_parameter_is_found_by_any_spelling_of_the_annotation(memory_app: App) -> None:
    got: list[Any] = []

    @memory_app.task
    def qualified(ctx: dayjob.Context, a: int) -> None:
        got.append((type(ctx), a))

    def plain(ctx, a):
        got.append((type(ctx), a))

    plain.__annotations__ = {"ctx": Context, "a": int}

    def recorded(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @memory_app.task
    def optional(ctx: Context | None, a: int) -> None:
        got.append((type(ctx), a))

    @memory_app.task
    def defaulted(ctx: Context | None = None, a: int = 0) -> None:
        got.append((type(ctx), a))

    @memory_app.task
    @recorded
    def wrapped(ctx: Context, a: int) -> None:
        got.append((type(ctx), a))

    for task in (qualified, memory_app.task(plain), wrapped, optional, defaulted):
        task.enqueue(1)
    run(memory_app)
    assert got == [(Context, 1)] * 5
    optional(1)
    defaulted(a=1)
    assert got == [(Context, 1)] * 7


def test_a_context_that_is_not_first_is_refused_like_any_value(memory_app: App) -> None:
    @memory_app.task
    def late(a: int, ctx: Context) -> None: ...

    with pytest.raises(TypeError, match="ctx"):
        late.enqueue(1)  # type: ignore[call-arg]


def test_a_first_annotation_with_unhashable_parts_is_no_context(memory_app: App) -> None:
    @memory_app.task
    def take(a: Annotated[int, {"unit": ["px"]}]) -> int:
        return a

    @memory_app.task
    def call(back: Callable[[int], int] | None = None) -> bool:
        return back is None

    handles = take.enqueue(5), call.enqueue()
    run(memory_app)
    assert [handle.result() for handle in handles] == [5, True]
