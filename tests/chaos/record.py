"""The record of a run: one file a process, one line of JSON an entry.

A call writes an entry before it reaches the storage, and another with its answer before the caller gets it.
An entry is one write to the file, so it outlives a killed process. A call without an answer may have been
applied or not. The last line of a file may be torn.

``at`` is the host's monotonic clock, which all processes of a host share and which no step of the time
changes. Fields that end in ``_us`` are times of the engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dayjob.runtime.clock import SYSTEM

ENTRIES, FINAL = "*.record", "final.json"


class NewItem(Struct, omit_defaults=True):
    """A job of an enqueue, or a follow-up job. ``reserved``: the caller gave the id."""

    id: str
    queue: str
    priority: int | None = None
    delayed: bool = False
    expires: bool = False
    dedup_key: str | None = None
    dedup_until: str = "claimed"
    kv: list[str] = []
    reserved: bool = False


class SettleItem(Struct, omit_defaults=True):
    id: str
    claim: str
    transition: str
    insert: list[NewItem] = []
    kv: list[str] = []


class ClaimedItem(Struct, omit_defaults=True):
    """A job of the answer to a claim. ``limits`` are the units that it holds, by bucket."""

    id: str
    claim: str
    queue: str
    priority: int
    epoch: int
    attempts: int
    max_attempts: int
    lease_us: int
    granted_us: int
    limits: dict[str, int] = {}


class EndedItem(Struct):
    id: str
    old_state: str
    state: str
    error: str


class Entry(Struct, tag=True, kw_only=True):
    at: float = 0.0


class Call(Entry, kw_only=True):
    number: int = 0


class Enqueue(Call, kw_only=True):
    """Answer: pairs of id and whether the job was created."""

    jobs: list[NewItem]


class Claim(Call, kw_only=True):
    """Answer: a list of ``ClaimedItem``. Without queues: from any queue."""

    queues: list[str]
    worker: str | None = None


class Settle(Call, kw_only=True):
    """Answer: the new state of each job, None for a lost claim."""

    ops: list[SettleItem]


class Renew(Call, kw_only=True):
    """Answer: the new end of each lease, None for a lost claim."""

    claims: list[tuple[str, str]]


class Change(Call, kw_only=True):
    """A call of an operator on jobs. Answer: a list with one outcome for each job, or a number.

    Without ids the call is for a whole queue.
    """

    verb: str
    ids: list[str]


class Duty(Call, kw_only=True):
    """A try of a verb that ends claims or waiting jobs. ``token`` names the write.

    Answer: a list of ``EndedItem``. One without an error is a hand-off that no caller got.
    """

    verb: str
    token: str


class Answer(Entry):
    number: int
    value: Any = None


class Failed(Entry):
    """The call raised an error. It may have been applied."""

    number: int
    error: str


class Ended(Entry):
    """The report of jobs that changed without a worker."""

    jobs: list[EndedItem]


class Unseen(Entry):
    """Claims that the broker released itself: no caller got them."""

    ids: list[str]


class Announced(Entry):
    """An event that observers of the app received."""

    event: str
    id: str


class Run(Entry):
    """The handler of a job was called."""

    id: str
    claim: str


class Opened(Entry):
    """The first entry of a process. ``announces``: it has an observer that writes ``Announced``."""

    pid: int
    role: str
    announces: bool = False


class Closed(Entry):
    """The last entry of a process that ended in order."""


class Setup(Entry):
    """The rules of a run. ``kept`` queues keep every finished job. ``ordered`` ones have one consumer.

    ``drained``: workers had the time to run all jobs before the final state was read.
    """

    kept: list[str] = []
    ordered: list[str] = []
    limits: dict[str, int] = {}
    drained: bool = False


class Fault(Entry):
    """A fault, from ``at`` to ``until``. ``pid`` is the process that it concerns; None concerns all.

    ``lossy``: by contract, writes of this time may be lost. ``step`` is a change of the clock in seconds.
    """

    kind: str
    until: float
    pid: int | None = None
    lossy: bool = False
    step: float = 0.0


AnyEntry = (
    Enqueue | Claim | Settle | Renew | Change | Duty | Answer | Failed | Ended | Unseen | Announced | Run
    | Opened | Closed | Setup | Fault
)  # fmt: skip


class FinalJob(Struct, omit_defaults=True):
    id: str
    queue: str
    state: str
    attempts: int
    max_attempts: int
    dedup_key: str | None = None
    dedup_until: str = "claimed"
    schedule: str | None = None
    due_us: int | None = None
    last_error: str | None = None
    finished_us: int | None = None


class FinalSchedule(Struct):
    """``first_us`` is the first due time of the run, ``last_us`` the last that fired."""

    id: str
    every_us: int
    first_us: int
    last_us: int | None = None


class Final(Struct):
    """The state of the storage after the run."""

    jobs: list[FinalJob]
    stats: dict[str, dict[str, int]]
    kv: list[str] = []
    schedules: list[FinalSchedule] = []


PART = 2**20
"""The bytes of one file. A process with more entries has several."""


class Record:
    """The files of one process. Without a buffer: each entry is one write."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._encoder = msgspec.json.Encoder()
        self._calls = 0
        self._parts = 0
        self._left = PART
        self._file = self._open()

    def _open(self) -> int:
        path = self._folder / f"{self._name}~{self._parts:04}.record"
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, entry: AnyEntry) -> None:
        if not entry.at:
            entry.at = SYSTEM.elapsed()
        line = self._encoder.encode(entry) + b"\n"
        if self._left < len(line):
            os.close(self._file)
            self._parts += 1
            self._left = PART
            self._file = self._open()
        self._left -= len(line)
        os.write(self._file, line)

    def call(self, entry: Enqueue | Claim | Settle | Renew | Change | Duty) -> int:
        """Write a call. Return its number, for the answer."""
        self._calls += 1
        entry.number = self._calls
        self.write(entry)
        return entry.number

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[AnyEntry]:
    """Yield the entries of a file. A torn last line is left out."""
    decoder = msgspec.json.Decoder(AnyEntry)
    *lines, _torn = path.read_bytes().split(b"\n")
    for line in lines:
        yield decoder.decode(line)


def read_all(folder: Path) -> dict[str, Iterator[AnyEntry]]:
    """Return the entries of each process, by its name."""
    paths: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(ENTRIES)):
        paths.setdefault(path.stem.partition("~")[0], []).append(path)
    return {name: chain.from_iterable(map(read, parts)) for name, parts in paths.items()}


def write_final(folder: Path, final: Final) -> None:
    (folder / FINAL).write_bytes(msgspec.json.encode(final))


def read_final(folder: Path) -> Final:
    return msgspec.json.decode((folder / FINAL).read_bytes(), type=Final)
