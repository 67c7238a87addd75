"""A plain function that wraps a coroutine function, as some decorators do: its result is awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps

from dayjob import App, JobState
from tests.support.workers import record, run_until_idle


def careless(function: Callable[[int], Awaitable[int]]) -> Callable[[int], Awaitable[int]]:
    @wraps(function)
    def wrapper(number: int) -> Awaitable[int]:
        return function(number)

    return wrapper


async def test_the_awaitable_result_of_a_plain_function_is_awaited() -> None:
    app = App("memory://")

    @app.task(name="double")
    @careless
    async def double(number: int) -> int:
        return number * 2

    async with app:
        handle = await double.aenqueue(21)
        await run_until_idle(app)
        job = await record(app.broker, handle.id)
        assert (job.state, job.result) == (JobState.DONE, b"42")
