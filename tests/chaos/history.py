"""The history of a run, from its record: the calls on each job, with their processes and times.

``end`` is infinite for a call without an answer: it may be applied at any time after its beginning, or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from dayjob.model.durations import SECOND
from tests.chaos.record import (
    Announced,
    Answer,
    AnyEntry,
    Change,
    Claim,
    ClaimedItem,
    Closed,
    Duty,
    Ended,
    EndedItem,
    Enqueue,
    Failed,
    Fault,
    Final,
    NewItem,
    Opened,
    Renew,
    Run,
    Settle,
    Setup,
    Unseen,
    read_all,
    read_final,
)


class Operation(Struct):
    """One item of a call, with the time of the call and of its answer."""

    id: str
    process: str
    begin: float
    end: float

    @property
    def answered(self) -> bool:
        return self.end < inf


class Insert(Operation):
    """An enqueue. ``created`` is None without an answer; ``holder`` is the id in the answer."""

    item: NewItem
    created: bool | None = None
    holder: str = ""


class Grant(Operation):
    """A claim that a caller got. ``lease_us`` is the end of its lease after the last renewal."""

    item: ClaimedItem
    lease_us: int = 0

    @property
    def claim(self) -> str:
        return self.item.claim


class Settlement(Operation):
    """The end of a claim. ``state`` is the new state, None if the claim was lost, or without an answer."""

    claim: str
    transition: str
    state: str | None = None
    insert: list[NewItem] = []
    kv: list[str] = []

    @property
    def applied(self) -> bool:
        return self.state is not None

    @property
    def lost(self) -> bool:
        return self.answered and self.state is None

    @property
    def possible(self) -> bool:
        """Whether it was applied, or may have been."""
        return not self.lost


class Changed(Operation):
    """A call of an operator. ``outcome`` is None without an answer."""

    verb: str
    outcome: Any = None

    @property
    def possible(self) -> bool:
        return not self.answered or self.outcome not in (0, False, "not_found")


class Job(Struct):
    """All that the record has about one id."""

    id: str
    inserts: list[Insert] = field(default_factory=list)
    parents: list[Settlement] = field(default_factory=list)
    """The settlements that have it as a follow-up."""
    grants: list[Grant] = field(default_factory=list)
    """In the order of their epochs. By time if the id was used again: a clock that is set lowers epochs."""
    settlements: list[Settlement] = field(default_factory=list)
    changes: list[Changed] = field(default_factory=list)
    ended: list[EndedItem] = field(default_factory=list)
    """The ends of its claims by duties, and of its waiting."""
    ended_by: set[str] = field(default_factory=set)
    """The processes whose duties ended it."""
    reported: list[tuple[str, EndedItem]] = field(default_factory=list)
    """The reports of its ends, with the process."""
    unseen: int = 0
    """How often it was claimed for a caller that did not get it."""
    runs: list[Run] = field(default_factory=list)
    announced: int = 0

    @property
    def item(self) -> NewItem | None:
        for parent in self.parents:
            for item in parent.insert:
                if item.id == self.id:
                    return item
        return self.inserts[0].item if self.inserts else None

    @property
    def lives(self) -> int:
        """How often a job with this id was created: again after its reservation has ended."""
        return sum(insert.created is True for insert in self.inserts)

    def sort_grants(self) -> None:
        by_time = self.lives > 1
        self.grants.sort(key=lambda grant: grant.begin if by_time else grant.item.epoch)

    def granted_after(self, claim: str) -> list[Grant]:
        """Return the claims that are newer than this one; all if it is not recorded."""
        places = [place for place, grant in enumerate(self.grants, 1) if grant.claim == claim]
        return self.grants[places[0] :] if places else self.grants

    def settlements_of(self, claim: str) -> list[Settlement]:
        return [settlement for settlement in self.settlements if settlement.claim == claim]

    def changed(self, *verbs: str) -> list[Changed]:
        return [change for change in self.changes if change.verb in verbs and change.possible]


class Process(Struct):
    name: str
    pid: int = 0
    role: str = ""
    announces: bool = False
    closed: bool = False
    last: float = 0.0
    """The time of its last entry."""


class History:
    """The record of a run and the final state of its storage."""

    def __init__(self, records: Mapping[str, Iterable[AnyEntry]], final: Final) -> None:
        self.final = final
        self.jobs: dict[str, Job] = {}
        self.processes: dict[str, Process] = {}
        self.faults: list[Fault] = []
        self.setup = Setup()
        self._unanswered_duties: list[tuple[float, float]] = []
        """When duties may have ended claims or jobs that they did not report: from, until."""
        self._unanswered_claims: list[tuple[float, float, list[str]]] = []
        """When claims may have been granted that no caller got: from, until, queues."""
        self.queue_changes: list[Changed] = []
        """Calls of operators on whole queues."""
        self._engine_offset: float | None = None
        self._by_claim: dict[tuple[str, str], Grant] = {}
        renewals: list[tuple[Renew, Answer]] = []
        for name, entries in records.items():
            renewals += self._read(name, entries)
        for renew, answer in renewals:
            self._renewed(renew, answer)
        for job in self.jobs.values():
            job.sort_grants()
        self._at_risk = self._find_at_risk()

    @classmethod
    def load(cls, folder: Path) -> History:
        return cls(read_all(folder), read_final(folder))

    def job(self, id: str) -> Job:
        job = self.jobs.get(id)
        if job is None:
            job = self.jobs[id] = Job(id)
        return job

    # Reading.

    def _read(self, name: str, entries: Iterable[AnyEntry]) -> Iterator[tuple[Renew, Answer]]:
        process = self.processes[name] = Process(name)
        calls: dict[int, Enqueue | Claim | Settle | Renew | Change | Duty] = {}
        answered_tokens: set[str] = set()
        unanswered: list[tuple[Duty, float]] = []
        for entry in entries:
            process.last = entry.at
            match entry:
                case Enqueue() | Claim() | Settle() | Renew() | Change() | Duty():
                    calls[entry.number] = entry
                case Answer(number=number):
                    call = calls.pop(number)
                    if isinstance(call, Duty):
                        answered_tokens.add(call.token)
                        self._add_ended(name, msgspec.convert(entry.value, list[EndedItem]))
                    elif isinstance(call, Renew):
                        yield call, entry
                    else:
                        self._add(name, call, entry.at, entry.value)
                case Failed(number=number):
                    call = calls.pop(number)
                    if isinstance(call, Duty):
                        unanswered.append((call, entry.at))
                    elif not isinstance(call, Renew):
                        self._add(name, call, inf, None, entry.at)
                case Ended(jobs=jobs):
                    for ended in jobs:
                        self.job(ended.id).reported.append((name, ended))
                case Unseen(ids=ids):
                    for id in ids:
                        self.job(id).unseen += 1
                case Announced(id=id):
                    self.job(id).announced += 1
                case Run(id=id):
                    self.job(id).runs.append(entry)
                case Opened(pid=pid, role=role, announces=announces):
                    process.pid, process.role, process.announces = pid, role, announces
                case Closed():
                    process.closed = True
                case Setup():
                    self.setup = entry
                case Fault():
                    self.faults.append(entry)
        for call in calls.values():
            if isinstance(call, Duty):
                unanswered.append((call, process.last))
            elif not isinstance(call, Renew):
                self._add(name, call, inf, None, process.last)
        self._unanswered_duties += [
            (call.at, failed + LATE) for call, failed in unanswered if call.token not in answered_tokens
        ]

    def _add_ended(self, process: str, items: list[EndedItem]) -> None:
        for item in items:
            if item.error:
                self.job(item.id).ended.append(item)
                self.job(item.id).ended_by.add(process)
            else:
                self.job(item.id).unseen += 1

    def _add(
        self,
        process: str,
        call: Enqueue | Claim | Settle | Change,
        end: float,
        answer: Any,
        failed: float = inf,
    ) -> None:
        begin = call.at
        if isinstance(call, Enqueue):
            replies = answer if answer is not None else [("", None)] * len(call.jobs)
            for item, (holder, created) in zip(call.jobs, replies, strict=True):
                insert = Insert(item.id, process, begin, end, item, created, holder)
                self.job(item.id).inserts.append(insert)
        elif isinstance(call, Claim):
            if answer is None:
                self._unanswered_claims.append((begin, failed + LATE, call.queues))
            for claimed in msgspec.convert(answer or [], list[ClaimedItem]):
                grant = Grant(claimed.id, process, begin, end, claimed, claimed.lease_us)
                self.job(claimed.id).grants.append(grant)
                self._by_claim[claimed.id, claimed.claim] = grant
        elif isinstance(call, Settle):
            states = answer if answer is not None else [None] * len(call.ops)
            for op, state in zip(call.ops, states, strict=True):
                settlement = Settlement(
                    op.id, process, begin, end, op.claim, op.transition, state, op.insert, op.kv
                )
                self.job(op.id).settlements.append(settlement)
                for item in op.insert:
                    self.job(item.id).parents.append(settlement)
        else:
            outcome = answer[0] if isinstance(answer, list) else answer
            if not call.ids:
                self.queue_changes.append(Changed("", process, begin, end, call.verb, outcome))
            for id in call.ids:
                self.job(id).changes.append(Changed(id, process, begin, end, call.verb, outcome))

    def _renewed(self, renew: Renew, answer: Answer) -> None:
        for (id, claim), lease_us in zip(renew.claims, answer.value, strict=True):
            grant = self._by_claim.get((id, claim))
            if grant is not None and lease_us is not None:
                grant.lease_us = max(grant.lease_us, lease_us)

    # Faults.

    def _find_at_risk(self) -> set[str]:
        """Return the jobs with a call during a time in which writes may be lost by contract."""
        windows = [(fault.at, fault.until) for fault in self.faults if fault.lossy]
        if not windows:
            return set()
        return {
            job.id
            for job in self.jobs.values()
            for each in (*job.inserts, *job.parents, *job.grants, *job.settlements, *job.changes)
            if any(each.begin <= until and each.end >= at for at, until in windows)
        }

    def is_at_risk(self, id: str) -> bool:
        return id in self._at_risk

    @property
    def clock_was_set(self) -> bool:
        return any(fault.step for fault in self.faults)

    def faults_during(self, begin: float, end: float) -> bool:
        return any(fault.at <= end and fault.until >= begin for fault in self.faults)

    def step_during(self, begin: float, end: float) -> float:
        """Return the largest step of the clock during this time, in seconds."""
        steps = [abs(fault.step) for fault in self.faults if fault.at <= end and fault.until >= begin]
        return max(steps, default=0.0)

    def host_time(self, instant_us: int) -> float | None:
        """Return when the engine's clock had this time; None if that is unknown or ambiguous."""
        if self._engine_offset is None:
            offsets = [
                grant.end - grant.item.granted_us / SECOND
                for job in self.jobs.values()
                for grant in job.grants
            ]
            self._engine_offset = min(offsets, default=inf)
        return None if self.clock_was_set else instant_us / SECOND + self._engine_offset

    def died_before(self, process: str, at: float) -> bool:
        """Return whether the process was dead, or about to die, at this time."""
        known = self.processes[process]
        return not known.closed and known.last <= at

    def duty_unanswered(self, begin: float, end: float) -> bool:
        """Return whether a duty may have ended a claim in this time without a report."""
        return any(since <= end and until >= begin for since, until in self._unanswered_duties)

    def claim_unanswered(self, queue: str, begin: float, end: float) -> float:
        """Return the beginning of a claim that may have got a job of the queue then; infinity without one."""
        return min(
            (
                since
                for since, until, queues in self._unanswered_claims
                if since <= end and until >= begin and (queue in queues or not queues)
            ),
            default=inf,
        )


LATE = 10.0
"""Seconds after which a storage no longer applies a call whose caller has gone or has given up."""
