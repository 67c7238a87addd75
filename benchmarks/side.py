"""One side of a comparison in a process of its own.

A million jobs in one side's memory must not slow down its rival: not through the garbage collector,
not through a shared cache. The sides take turns; the one that does not work waits for its pipe.
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

KEEPING = BrokerConfig(retention=Retention(done=timedelta(days=1)))

_context = get_context("spawn")

_PATIENCE = 10
"""Seconds that a side gets to put its store away."""


class Store:
    """A URL in the side's process, seen through one broker at a time, so that no cache is lost to another."""

    def __init__(self, url: str, report: Callable[[int], None]) -> None:
        self._url = url
        self._broker: Broker | None = None
        self._opened: tuple[bool, str] | None = None
        self.report = report

    async def use(self, *, keep: bool, options: str = "") -> Broker:
        """A broker that keeps done jobs, or doesn't. The next is opened before the last is closed."""
        if self._broker is None or self._opened != (keep, options):
            before = self._broker
            self._broker = await Broker(self._url + options, config=KEEPING if keep else None).open()
            self._opened = (keep, options)
            if before is not None:
                await before.close()
        return self._broker

    async def close(self) -> None:
        if self._broker is not None:
            await self._broker.close()


class Side:
    """The parent's end: ``ask`` has a coroutine function run on the side's store."""

    def __init__(self, url: str) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(url, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ask(
        self,
        work: Callable[Concatenate[Store, Parameters], Awaitable[Answer]],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Answer:
        """Do the work in the side's process and wait for its answer."""
        return self.ask_for_long(lambda steps: None, work, *args, **kwargs)

    def ask_for_long(
        self,
        advance: Callable[[int], None],
        work: Callable[Concatenate[Store, Parameters], Awaitable[Answer]],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Answer:
        """``ask``, passing on what the work reports meanwhile."""
        self._pipe.send((work, args, kwargs))
        while True:
            kind, value = self._pipe.recv()
            if kind == "progress":
                advance(value)
            elif kind == "answer":
                return cast(Answer, value)
            else:
                raise RuntimeError(f"the other side failed:\n{value}")

    def close(self) -> None:
        self._pipe.close()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.terminate()


def _serve(url: str, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it closes the pipe
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
