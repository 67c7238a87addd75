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
        self._ended: dict[bytes, list[int]] = {}
        """The claims that name a job although it does not run under them."""
        self._next = 1

    def add(self, stored: Claimed, running: set[bytes], number: int | None = None) -> int:
        """Add a claim. Return its number, which is the next one by default."""
        number = self._next if number is None else number
        self._next = max(self._next, number + 1)
        self.by_number[number] = OpenClaim(stored, running)
        for key in running:
            self._number_of[key] = number
        if len(running) < len(stored.entries):
            for entry in stored.entries:
                if entry[0] not in running:
                    self._ended.setdefault(entry[0], []).append(number)
        return number

    def remove(self, number: int) -> None:
        """Remove a claim that has no running job left."""
        for entry in self.by_number.pop(number).stored.entries:
            numbers = self._ended.get(entry[0])
            if numbers is not None and number in numbers:
                numbers.remove(number)
                if not numbers:
                    del self._ended[entry[0]]

    def end(self, key: bytes) -> int | None:
        """End the run of a job. Return the number of its claim if that has no running job left."""
        self.sessions.pop(key, None)
        number = self._number_of.pop(key, None)
        if number is None:
            return None
        claim = self.by_number[number]
        claim.running.discard(key)
        if claim.running:
            self._ended.setdefault(key, []).append(number)
            return None
        self.remove(number)
        return number

    def take_ended(self, key: bytes) -> list[int]:
        """Return the claims that name the job although it does not run under them. They name it no longer."""
        return self._ended.pop(key, [])
