"""An engine and the reference side by side: each call goes to both, answers and states are compared.

The engine is reached through two brokers in turn, so that what one remembers is tested against what the
other wrote. The reference is a memory engine of its own; with none, the state is compared with itself:
the counters with the listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from dayjob import Broker, BrokerConfig, DayjobError, Job
from dayjob.testing import ManualClock
from tests.support.observe import CLAIM_FIELDS, check_counters, everything, fields

T = TypeVar("T")

Claim = tuple[Job, ...]
"""One claim as the engine, and as the reference, handed it out."""

Call = Callable[[Broker, int], Awaitable[T]]
"""Gets the broker to call, and the number of the side: 0 is the engine, 1 the reference."""


class Twins:
    def __init__(self, url: str, config: BrokerConfig, clock: ManualClock, *, reference: bool) -> None:
        self.clock = clock
        self._url = url
        self._config = config
        self._runner = asyncio.Runner()
        self._turn = 0
        self._reference = [self._broker("memory://")] if reference else []
        self._brokers = [self._broker(url), self._broker(url)]
        self._runner.run(self._open([*self._reference, *self._brokers]))

    def _broker(self, url: str) -> Broker:
        return Broker(url, config=self._config, clock=self.clock)

    async def _open(self, brokers: Sequence[Broker]) -> None:
        for broker in brokers:
            await broker.open()

    async def _close(self, brokers: Sequence[Broker]) -> None:
        for broker in brokers:
            await broker.close()

    @property
    def persistent(self) -> bool:
        return self._brokers[0].capabilities.persistent

    @property
    def sides(self) -> list[Broker]:
        return [self._brokers[self._turn % 2], *self._reference]

    def close(self) -> None:
        self._runner.run(self._close([*self._brokers, *self._reference]))
        self._runner.close()

    def reopen(self) -> None:
        """Close the engine's brokers, so that nothing is left but what is stored, and open new ones."""
        self._runner.run(self._close(self._brokers))
        self._brokers = [self._broker(self._url), self._broker(self._url)]
        self._runner.run(self._open(self._brokers))

    def ask(self, call: Call[T], shown: Callable[[T], Any] = lambda answer: answer) -> list[T]:
        """The answers of both sides, which are equal in what is shown; none if both raised the same error."""
        return self._runner.run(self._ask(call, shown))

    async def _ask(self, call: Call[T], shown: Callable[[T], Any]) -> list[T]:
        answers: list[T] = []
        told: list[Any] = []
        for side, broker in enumerate(self.sides):
            try:
                answer = await call(broker, side)
            except (DayjobError, ValueError) as error:
                told.append(type(error))
            else:
                answers.append(answer)
                told.append(shown(answer))
        assert all(one == told[-1] for one in told), (
            f"the engine said {told[0]!r}, the reference {told[-1]!r}"
        )
        self._turn += 1
        return answers

    def claim(self, queues: Sequence[str] | None, **options: Any) -> list[Claim]:
        """Claim from the queues, or from all."""
        sides = self.ask(
            lambda broker, _: (
                broker.claim_any(**options) if queues is None else broker.claim(queues, **options)
            ),
            lambda jobs: [fields(job, CLAIM_FIELDS) for job in jobs],
        )
        return list(zip(*sides, strict=True))

    def compare(self, keys: Sequence[bytes]) -> list[dict[str, Any]]:
        """The whole state of both sides is the same; the jobs as they are listed."""
        return self._runner.run(self._compare(keys))

    async def _compare(self, keys: Sequence[bytes]) -> list[dict[str, Any]]:
        states = []
        for broker in self.sides:
            state = await everything(broker)
            state["kv"] = [await broker.kv_get(key) for key in keys]
            state["due"] = await broker.next_due()
            states.append(state)
        for name, found in states[0].items():
            assert found == states[-1][name], (
                f"{name}: the engine has {found}, the reference {states[-1][name]}"
            )
        if not self._reference:
            await check_counters(self.sides[0])
        jobs: list[dict[str, Any]] = states[-1]["jobs"]
        return jobs
