"""Workers of tasks with a rate: ``python -m benchmarks.rated_worker work URL WORKERS``.

They run until the parent sends a line.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.child import Answer, run, wait_for_go
from benchmarks.fleet import working
from dayjob import App, Context, Limit

RATE = 100
BURST = 10
TOKENS = Limit("tokens", rate=60_000, per=60, burst=1000)


def make_app(url: str, burst: int = BURST) -> App:
    app = App(url)

    @app.task(name="rated", limits=[Limit("rate", rate=RATE, burst=burst)])
    async def rated() -> None:
        pass

    @app.task(name="charged", limits=[TOKENS])
    async def charged(ctx: Context, tokens: int) -> None:
        ctx.charge("tokens", tokens)

    return app


@asynccontextmanager
async def workers(app: App, count: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(working(app))
        yield


async def work(url: str, count: int) -> Answer:
    async with make_app(url) as app, workers(app, count):
        await wait_for_go()
    return {}


if __name__ == "__main__":
    run({"work": work}, sys.argv[1:])
