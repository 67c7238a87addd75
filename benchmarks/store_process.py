"""A store of a comparison in its own process.

A million jobs in the memory of one store must not slow down the other through the garbage collector or a
shared cache. The stores take turns; an idle one waits on its pipe.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Concatenate, ParamSpec, TypeVar, cast

from dayjob import Broker, BrokerConfig, Retention

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")

RETAINING = BrokerConfig(retention=Retention(done=timedelta(days=1)))

_context = get_context("spawn")

_CLOSE_TIMEOUT = 10
"""Seconds in which the process may close its store."""


class Store:
    """The store inside the process, opened by one broker at a time so that caches stay warm."""

    def __init__(self, url: str, report: Callable[[int], None]) -> None:
        self._url = url
        self._broker: Broker | None = None
        self._opened: tuple[bool, str] | None = None
        self.report = report

    async def use(self, *, retain: bool, options: str = "") -> Broker:
        """Return a broker that retains done jobs or not. It is opened before the last one is closed."""
        if self._broker is None or self._opened != (retain, options):
            before = self._broker
            self._broker = await Broker(self._url + options, config=RETAINING if retain else None).open()
            self._opened = (retain, options)
            if before is not None:
                await before.close()
        return self._broker

    async def close(self) -> None:
        if self._broker is not None:
            await self._broker.close()


class StoreProcess:
    """The parent's end. ``run`` runs a coroutine function on the store in the process."""

    def __init__(self, url: str) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(url, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def run(
        self,
        work: Callable[Concatenate[Store, Parameters], Awaitable[Answer]],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Answer:
        """Run the work in the process and return its answer."""
        return self.run_with_progress(lambda steps: None, work, *args, **kwargs)

    def run_with_progress(
        self,
        advance: Callable[[int], None],
        work: Callable[Concatenate[Store, Parameters], Awaitable[Answer]],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Answer:
        """``run``, and call ``advance`` for each progress report of the work."""
        self._pipe.send((work, args, kwargs))
        while True:
            kind, value = self._pipe.recv()
            if kind == "progress":
                advance(value)
            elif kind == "answer":
                return cast(Answer, value)
            else:
                raise RuntimeError(f"the store's process failed:\n{value}")

    def close(self) -> None:
        self._pipe.close()
        self._process.join(_CLOSE_TIMEOUT)
        if self._process.is_alive():
            self._process.terminate()


def _serve(url: str, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipe
    asyncio.run(_answer_all(url, pipe))


async def _answer_all(url: str, pipe: Connection) -> None:
    store = Store(url, lambda steps: pipe.send(("progress", steps)))
    try:
        while True:
            try:
                work, args, kwargs = await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            try:
                pipe.send(("answer", await work(store, *args, **kwargs)))
            except BrokenPipeError:
                return
            except Exception:
                pipe.send(("failure", traceback.format_exc()))
    finally:
        await store.close()
