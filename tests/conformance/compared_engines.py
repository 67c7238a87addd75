"""An engine and the memory reference: each call goes to both, and replies and states are compared.

The engine is called through two brokers in turn, so that the cache of one is tested against the writes of
the other. Without a reference (the memory engine itself), the counters are compared with the listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from dayjob import Broker, BrokerConfig, DayjobError, Job, LimitInfo
from dayjob.testing import ManualClock
from tests.support.observe import CLAIM_FIELDS, check_counters, everything, fields

T = TypeVar("T")

Claim = tuple[Job, ...]
"""One claim: the job as the engine returned it, and as the reference did."""

Call = Callable[[Broker, int], Awaitable[T]]
"""The arguments are the broker and the side: 0 is the engine, 1 the reference."""


class ComparedEngines:
    def __init__(self, url: str, config: BrokerConfig, clock: ManualClock, *, reference: bool) -> None:
        self.clock = clock
        self._url = url
        self._config = config
        self._runner = asyncio.Runner()
        self._turn = 0
        self.limits: list[LimitInfo] = []
        """As the last comparison read them."""
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
        """Close the engine's brokers, so that only stored data is left, and open new ones."""
        self._runner.run(self._close(self._brokers))
        self._brokers = [self._broker(self._url), self._broker(self._url)]
        self._runner.run(self._open(self._brokers))

    def call_both(self, call: Call[T], shown: Callable[[T], Any] = lambda answer: answer) -> list[T]:
        """Return the replies of both sides. Fails unless ``shown`` of them is equal.

        The list is empty if both sides raised the same error.
        """
        return self._runner.run(self._call_both(call, shown))

    async def _call_both(self, call: Call[T], shown: Callable[[T], Any]) -> list[T]:
        answers: list[T] = []
        compared: list[Any] = []
        for side, broker in enumerate(self.sides):
            try:
                answer = await call(broker, side)
            except (DayjobError, ValueError) as error:
                compared.append(type(error))
            else:
                answers.append(answer)
                compared.append(shown(answer))
        assert all(one == compared[-1] for one in compared), (
            f"the engine replied {compared[0]!r}, the reference {compared[-1]!r}"
        )
        self._turn += 1
        return answers

    def claim(self, queues: Sequence[str] | None, **options: Any) -> list[Claim]:
        """Claim from the queues, or from all."""
        sides = self.call_both(
            lambda broker, _: (
                broker.claim_any(**options) if queues is None else broker.claim(queues, **options)
            ),
            lambda jobs: [fields(job, CLAIM_FIELDS) for job in jobs],
        )
        return list(zip(*sides, strict=True))

    def compare(self, keys: Sequence[bytes]) -> list[dict[str, Any]]:
        """Fail unless the whole state of both sides is equal. Return the listed jobs."""
        return self._runner.run(self._compare(keys))

    async def _compare(self, keys: Sequence[bytes]) -> list[dict[str, Any]]:
        states = []
        for broker in self.sides:
            state = await everything(broker)
            state["kv"] = [await broker.kv_get(key) for key in keys]
            state["due"] = await broker.next_due()
            state["limits"] = await broker.limits()
            states.append(state)
        for name, found in states[0].items():
            assert found == states[-1][name], (
                f"{name}: the engine has {found}, the reference {states[-1][name]}"
            )
        if not self._reference:
            await check_counters(self.sides[0])
        self.limits = states[-1]["limits"]
        jobs: list[dict[str, Any]] = states[-1]["jobs"]
        return jobs
