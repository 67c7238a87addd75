"""Tokens: by which the server knows a call that it has answered before.

Each call that changes something goes out on a lane of its own, with a number above those that the lane had
before. The server keeps the last answer of every lane, so what is kept stays small however many calls there
are, and a call that arrives late, behind its successor, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from dayjob.engines.redis.keys import Keys
from dayjob.runtime.ids import new_key


class Ticket(Struct, frozen=True):
    """One call: where its answer is kept, and its token."""

    lane: int
    answer: bytes
    token: int


class Lanes:
    """The lanes of one engine, as many as it ever had calls under way at once."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._client = new_key().hex()
        self._free: list[int] = []
        self._lanes = 0
        self._token = 0

    def take(self) -> Ticket:
        if self._free:
            lane = self._free.pop()
        else:
            lane = self._lanes
            self._lanes += 1
        self._token += 1
        return Ticket(lane, self._keys.answer(self._client, lane), self._token)

    def give_back(self, ticket: Ticket) -> None:
        self._free.append(ticket.lane)

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        taken = self.take()
        try:
            yield taken
        finally:
            self.give_back(taken)
