"""Random programs: every engine answers as the memory engine does, and holds the same state after each step."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test,
)  # fmt: skip
from msgspec.structs import replace

from dayjob import Job, JobState, NewJob, QueueConfig, Retention, Retry, Settlement
from dayjob.testing import ManualClock
from tests.conformance.arrange import quiet
from tests.conformance.engines import ENGINES, EngineUnderTest
from tests.conformance.observe import FIELDS, fields
from tests.conformance.twins import Claim, Twins

CONFIG = quiet(
    default=QueueConfig(max_attempts=2, lease=30, retry=Retry.fixed(attempts=2, delay=5)),
    queues={
        "a:b": QueueConfig(max_attempts=1, lease=5, priority=2, retention=Retention(dead=20)),
        "kept for ever": QueueConfig(retention=Retention(done=5, dead=None, cancelled=50)),
        "never kept": QueueConfig(retention=Retention(done=0, dead=0, cancelled=0), retry=lambda n, exc: n - 1.0),
    },
    retention=Retention(done=40, dead=60, cancelled=20),
)

IDS = st.integers(0, 40).map(lambda number: str(UUID(int=number * 7919 % 41)))
QUEUES = st.sampled_from(["a", "a:b", "kept for ever", "never kept"])
KEYS = [b"k", b"K", b"\x00"]
TIMES = st.sampled_from([0, 1e-6, 1, 4.999999, 5, 10, 20, 29.999999, 30, 60, 10_000])
PRIORITIES = st.sampled_from([0, 1, 1000, 2**32 - 1])
KV = st.none() | st.dictionaries(st.sampled_from(KEYS), st.sampled_from([b"", b"v", b"w"]), max_size=2)
PICK = st.integers(0, 1000)

PROGRAMS = int(os.environ.get("DAYJOB_MODEL_PROGRAMS", "60"))
"""How many programs to run on each engine; raise it to look further than the time of a test run allows."""


@st.composite
def new_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """The options of a job; ``run_in`` is turned into a ``run_at`` at the clock's time."""
    options: dict[str, Any] = {"id": draw(IDS), "queue": draw(QUEUES)}
    match draw(st.integers(0, 3)):
        case 1:
            options["delay"] = draw(TIMES)
        case 2:
            options["run_in"] = draw(st.sampled_from([-100, 0, 1e-6, 5, 30]))
    if draw(st.booleans()):
        options["dedup_key"] = draw(st.sampled_from(["k", "K", "a:k"]))
        options["dedup_until"] = draw(st.sampled_from(["claimed", "settled"]))
    if draw(st.booleans()):
        options["payload"] = draw(st.sampled_from([b"", b"\x00\xff", b"data"]))
        options["task"] = draw(st.sampled_from(["", "t", "T"]))
        options["headers"] = draw(st.sampled_from([None, {}, {"h": "v", "é": ""}]))
        options["tenant"] = draw(st.sampled_from([None, "acme"]))
        options["priority"] = draw(st.none() | PRIORITIES)
        options["max_attempts"] = draw(st.sampled_from([None, 1, 2, 12]))
        options["expires"] = draw(st.none() | TIMES)
        options["kv"] = draw(KV)
    return options


@st.composite
def settlements(draw: st.DrawFn) -> dict[str, Any]:
    """The options of a settlement; ``pick`` chooses among all claims so far, the stale ones included."""
    verb = draw(st.sampled_from(["ack", "nack", "dead_letter", "release", "snooze", "mark_cancelled"]))
    options: dict[str, Any] = {"verb": verb, "pick": draw(PICK)}
    if verb == "ack" and draw(st.booleans()):
        options["result"] = draw(st.sampled_from([None, b"", b"result"]))
        options["enqueue"] = draw(st.lists(new_jobs(), max_size=2))
        options["kv"] = draw(KV)
    if verb == "nack":
        options["error"] = draw(st.sampled_from(["boom", "", "nul \0"]))
        options["delay"] = draw(st.none() | TIMES)
    if verb == "dead_letter":
        options["reason"] = "hopeless"
    if verb == "snooze":
        options["delay"] = draw(TIMES)
    return options


class Program(RuleBasedStateMachine):
    engine: EngineUnderTest
    directory: Path

    def __init__(self) -> None:
        super().__init__()
        clock = ManualClock()
        self.clock = clock
        reference = self.engine.name != "memory"
        self.twins = Twins(self.engine.url(self.directory), CONFIG, clock, reference=reference)
        self.claims: list[Claim] = []

    def teardown(self) -> None:
        self.twins.close()

    @invariant()
    def both_hold_the_same(self) -> None:
        self.twins.compare(KEYS)

    # Choosing.

    def new_job(self, options: dict[str, Any]) -> NewJob:
        given = dict(options)
        if "run_in" in given:
            given["run_at"] = self.clock.time + timedelta(seconds=given.pop("run_in"))
        return NewJob(**given)

    def claim_of(self, pick: int) -> Claim:
        """Recent claims, which are likelier to be current, are chosen more often."""
        recent = self.claims[-6:]
        return recent[pick % len(recent)] if pick % 4 else self.claims[pick % len(self.claims)]

    def settlement(self, options: dict[str, Any], side: int) -> Settlement:
        given = dict(options)
        make: Callable[..., Settlement] = getattr(Settlement, given.pop("verb"))
        job = replace(self.claim_of(given.pop("pick"))[side])
        if "enqueue" in given:
            given["enqueue"] = [self.new_job(one) for one in given["enqueue"]]
        return make(job, **given)

    # In.

    @rule(options=new_jobs())
    def enqueue(self, options: dict[str, Any]) -> None:
        job = self.new_job(options)
        given = {name: getattr(job, name) for name in job.__struct_fields__}
        self.twins.ask(lambda broker, _: broker.enqueue(**given))

    @rule(batch=st.lists(new_jobs(), max_size=6))
    def enqueue_many(self, batch: list[dict[str, Any]]) -> None:
        jobs = [self.new_job(options) for options in batch]
        self.twins.ask(lambda broker, _: broker.enqueue_many(jobs))

    # Out.

    @rule(
        queues=st.lists(QUEUES, min_size=1, max_size=4),
        limit=st.sampled_from([1, 1, 2, 5, 0]),
        lease=st.sampled_from([None, None, 5, 60]),
        worker=st.sampled_from([None, "w1", "w2"]),
    )
    def claim(self, queues: list[str], limit: int, lease: float | None, worker: str | None) -> None:
        self.claims += self.twins.claim(queues, limit=limit, lease=lease, worker=worker)

    @rule(limit=st.integers(1, 5))
    def claim_anything(self, limit: int) -> None:
        queues = ["never kept", "a", "a:b", "kept for ever"]
        self.claims += self.twins.claim(queues, limit=limit, worker="w")

    @precondition(lambda self: self.claims)
    @rule(options=settlements())
    def settle(self, options: dict[str, Any]) -> None:
        settlement = [self.settlement(options, side) for side in range(len(self.twins.sides))]
        verb = options["verb"]
        arguments = {
            name: getattr(settlement[0], "error" if name == "reason" else name)
            for name in options
            if name not in ("verb", "pick")
        }
        self.twins.ask(lambda broker, side: getattr(broker, verb)(settlement[side].job, **arguments))

    @precondition(lambda self: self.claims)
    @rule(batch=st.lists(settlements(), max_size=5))
    def settle_many(self, batch: list[dict[str, Any]]) -> None:
        self.twins.ask(
            lambda broker, side: broker.settle_many([self.settlement(one, side) for one in batch])
        )

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, lease=st.sampled_from([None, 1e-6, 5, 60]))
    def renew(self, pick: int, lease: float | None) -> None:
        claim = self.claim_of(pick)
        self.twins.ask(lambda broker, side: broker.renew(claim[side], lease))
        assert len({(job.lease_expires_at, job.cancel_requested) for job in claim}) == 1

    # From outside.

    @precondition(lambda self: self.claims)
    @rule(pick=PICK)
    def cancel_claimed(self, pick: int) -> None:
        id = self.claim_of(pick)[0].id
        self.twins.ask(lambda broker, _: broker.cancel(id))

    @rule(id=IDS)
    def cancel(self, id: str) -> None:
        self.twins.ask(lambda broker, _: broker.cancel(id))

    @rule(pick=PICK)
    def requeue(self, pick: int) -> None:
        [*dead] = self.twins.ask(lambda broker, _: broker.dead_jobs(), lambda jobs: [job.id for job in jobs])
        id = dead[0][pick % len(dead[0])].id if dead[0] else str(UUID(int=pick % 41))
        self.twins.ask(lambda broker, _: broker.requeue(id))

    @rule(queue=QUEUES)
    def requeue_dead(self, queue: str) -> None:
        self.twins.ask(lambda broker, _: broker.requeue_dead(queue))

    @rule(queue=st.none() | QUEUES)
    def purge_dead(self, queue: str | None) -> None:
        self.twins.ask(lambda broker, _: broker.purge_dead(queue))

    @rule(id=IDS, run_in=st.sampled_from([None, -5, 0, 1e-6, 5, 30]), priority=st.none() | PRIORITIES)
    def reschedule(self, id: str, run_in: float | None, priority: int | None) -> None:
        run_at = None if run_in is None else self.clock.time + timedelta(seconds=run_in)
        self.twins.ask(lambda broker, _: broker.reschedule(id, run_at, priority))

    @rule(queue=QUEUES, pause=st.sampled_from([True, False, False]))
    def pause_or_resume(self, queue: str, pause: bool) -> None:
        self.twins.ask(lambda broker, _: broker.pause(queue) if pause else broker.resume(queue))

    @rule(key=st.sampled_from(KEYS), value=st.sampled_from([None, b"", b"x"]))
    def kv(self, key: bytes, value: bytes | None) -> None:
        self.twins.ask(
            lambda broker, _: broker.kv_delete(key) if value is None else broker.kv_put(key, value)
        )

    # Time and duties.

    @rule(seconds=TIMES)
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([1e-6, 10, 3600]))
    def set_the_clock_back(self, seconds: float) -> None:
        self.clock.set(self.clock.time - timedelta(seconds=seconds))

    @rule(duty=st.sampled_from(["promote", "reap", "sweep"]), later=st.sampled_from([0, 0, 5, 30, 60]))
    def duty(self, duty: str, later: float) -> None:
        self.clock.advance(later)
        self.twins.ask(lambda broker, _: getattr(broker, duty)())

    @rule(which=st.sampled_from(["sweep_done", "sweep_dead"]), age=st.sampled_from([0, 5, 30]))
    def sweep_finished(self, which: str, age: float) -> None:
        self.twins.ask(lambda broker, _: getattr(broker, which)(age))

    @precondition(lambda self: self.twins.persistent)
    @rule()
    def reopen(self) -> None:
        self.twins.reopen()

    # Looking.

    @rule(
        queue=st.none() | QUEUES, state=st.none() | st.sampled_from(list(JobState)),
        task=st.sampled_from([None, None, "t", "T", ""]), after=st.none() | IDS,
        limit=st.sampled_from([0, 1, 3, 100]), newest_first=st.booleans(),
    )  # fmt: skip
    def listing(self, **options: Any) -> None:
        def shown(jobs: list[Job]) -> list[dict[str, Any]]:
            return [fields(job, FIELDS) for job in jobs]

        self.twins.ask(lambda broker, _: broker.jobs(**options), shown)

    @rule(id=IDS)
    def look(self, id: str) -> None:
        self.twins.ask(lambda broker, _: broker.get(id), lambda job: job and fields(job))
        self.twins.ask(
            lambda broker, _: broker.wait(id, 0), lambda waited: (waited.status, waited.job and fields(waited.job))
        )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_random_programs(engine: EngineUnderTest, tmp_path: Path) -> None:
    numbers = count()

    def program() -> Program:
        directory = tmp_path / f"{engine.name}-{next(numbers)}"
        directory.mkdir()
        kind = type("Program", (Program,), {"engine": engine, "directory": directory})
        machine: Program = kind()
        return machine

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        program,
        settings=settings(
            max_examples=PROGRAMS,
            stateful_step_count=50,
            deadline=None,
            database=None,
            derandomize=False,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
