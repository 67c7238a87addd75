"""The stored claims whose jobs still run."""

from __future__ import annotations

from msgspec import Struct

from dayjob.engines.slatedb.values import Claimed


class OpenClaim(Struct):
    """A stored claim, and those of its jobs that still run under it."""

    stored: Claimed
    running: set[bytes]


class OpenClaims:
    """Claims by number, and the claim and session of each running job."""

    def __init__(self) -> None:
        self.by_number: dict[int, OpenClaim] = {}
        self.sessions: dict[bytes, int] = {}
        """The session in which each running job was claimed."""
        self._number_of: dict[bytes, int] = {}
        self._next = 1

    def add(self, stored: Claimed, running: set[bytes], number: int | None = None) -> int:
        """Add a claim. Return its number, which is the next one by default."""
        number = self._next if number is None else number
        self._next = max(self._next, number + 1)
        self.by_number[number] = OpenClaim(stored, running)
        for key in running:
            self._number_of[key] = number
        return number

    def end(self, key: bytes) -> int | None:
        """End the run of a job. Return the number of its claim if that has no running job left."""
        self.sessions.pop(key, None)
        number = self._number_of.pop(key, None)
        if number is None:
            return None
        claim = self.by_number[number]
        claim.running.discard(key)
        if claim.running:
            return None
        del self.by_number[number]
        return number

    def ended_of(self, key: bytes) -> list[int]:
        """Return the claims that name the job although it does not run under them."""
        return [
            number
            for number, claim in self.by_number.items()
            if key not in claim.running and any(entry[0] == key for entry in claim.stored.entries)
        ]
