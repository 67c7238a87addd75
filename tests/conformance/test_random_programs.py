"""Random programs: every engine replies as the memory engine does, with an equal state after each step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from dayjob import JobState, LimitInfo, NewJob, Settlement
from dayjob.engines.base import ID_RESERVATION, Progress
from dayjob.model.durations import SECOND
from dayjob.model.limits import limit_name
from dayjob.testing import ManualClock
from tests.conformance.compared_engines import Claim, ComparedEngines
from tests.conformance.model_actions import (
    ACTIONS,
    CONFIG,
    KEYS,
    LIMITS,
    QUEUES,
    actions,
    id_of,
    new_jobs,
)
from tests.support.engines import ENGINES, EngineUnderTest
from tests.support.observe import fields

PROGRAMS = int(os.environ.get("DAYJOB_MODEL_PROGRAMS", "25"))
"""The number of programs per engine. Raise it for a longer search than a test run allows."""


class Program(RuleBasedStateMachine):
    engine: EngineUnderTest
    directory: Path

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        url = self.engine.url(self.directory)
        self.compared = ComparedEngines(url, CONFIG, self.clock, reference=self.engine.name != "memory")
        self.claims: list[Claim] = []
        self.jobs: list[dict[str, Any]] = []

    def teardown(self) -> None:
        self.compared.close()
        self.engine.after(self.directory)

    @initialize(jobs=st.lists(new_jobs(), min_size=3, max_size=8))
    def begin(self, jobs: list[dict[str, Any]]) -> None:
        for name in LIMITS:
            self.set_limit(name, 0)
        self.compared.call_both(lambda broker, _: broker.declare_limits("shop", []))
        self.enqueue_many(jobs)

    @rule(action=actions())
    def step(self, action: tuple[str, dict[str, Any]]) -> None:
        name, options = action
        getattr(self, name)(**options)

    @invariant()
    def states_are_equal(self) -> None:
        self.jobs = self.compared.compare(KEYS)
        check_limits(self.jobs, self.compared.limits)

    # Choice of targets: mostly those that the action applies to, sometimes any.

    def job_in(self, pick: int, *states: JobState) -> str:
        fitting = [job["id"] for job in self.jobs if job["state"] in states]
        return fitting[pick % len(fitting)] if fitting and pick % 5 else id_of(pick)

    def live_claims(self) -> list[Claim]:
        """Return the claims that are current: the last one of each running job."""
        last = {claim[0].id: claim for claim in self.claims}
        return [last[job["id"]] for job in self.jobs if job["state"] is JobState.RUNNING]

    def claim_of(self, pick: int) -> Claim:
        live = self.live_claims()
        chosen = live if live and pick % 4 else self.claims
        return chosen[pick % len(chosen)]

    def new_job(self, options: dict[str, Any]) -> NewJob:
        run_at = self.instant(options.get("run_in"))
        given = {name: value for name, value in options.items() if name != "run_in"}
        return NewJob(**given, run_at=run_at)

    def instant(self, seconds: float | None) -> Any:
        return None if seconds is None else self.clock.time + timedelta(seconds=seconds)

    def arguments(self, settlement: dict[str, Any]) -> dict[str, Any]:
        given = dict(settlement["arguments"])
        if "enqueue" in given:
            given["enqueue"] = [self.new_job(one) for one in given["enqueue"]]
        return given

    def settle_claims(self, batch: list[dict[str, Any]], claims: list[Claim], live: list[Claim]) -> None:
        def made(side: int) -> list[Settlement]:
            return [
                replace(
                    getattr(Settlement, one["verb"])(replace(claim[side]), **self.arguments(one)),
                    charges={limit_name(bucket): one["used"] for bucket, _ in claim[side].limits},
                )
                for one, claim in zip(batch, claims, strict=False)
            ]

        answers = self.compared.call_both(lambda broker, side: broker.settle_many(made(side)))
        current = {(claim[0].key, claim[0].claim) for claim in live}
        for number, claim in enumerate(claims if answers else ()):
            name = (claim[0].key, claim[0].claim)
            assert answers[0][number].applied == (name in current), "only a current claim settles, and once"
            current.discard(name)

    # Enqueue.

    def enqueue(self, job: dict[str, Any]) -> None:
        new = self.new_job(job)
        given = {name: getattr(new, name) for name in new.__struct_fields__}
        self.compared.call_both(lambda broker, _: broker.enqueue(**given))

    def enqueue_many(self, jobs: list[dict[str, Any]]) -> None:
        batch = [self.new_job(job) for job in jobs]
        self.compared.call_both(lambda broker, _: broker.enqueue_many(batch))

    def enqueue_again(self, pick: int, queue: str) -> None:
        """Enqueue the id of an earlier claim, preferably of one whose job has left."""
        present = {job["id"] for job in self.jobs}
        claimed = [claim[0].id for claim in self.claims]
        chosen = [id for id in claimed if id not in present] or claimed
        if chosen:
            id = chosen[pick % len(chosen)]
            self.compared.call_both(lambda broker, _: broker.enqueue(queue, id=id))

    # Claim and settle.

    def claim(self, queues: list[str], **options: Any) -> None:
        self.claims += self.compared.claim(queues, **options)

    def claim_any(self, limit: int) -> None:
        self.claims += self.compared.claim(None, limit=limit)

    def claim_anything(self, limit: int) -> None:
        self.claim(QUEUES, limit=limit, worker="w")

    def claim_and_settle(self, batch: list[dict[str, Any]]) -> None:
        claims = self.compared.claim(QUEUES, limit=len(batch), worker="w")
        self.claims += claims
        self.settle_claims(batch, claims, claims)

    def settle(self, settlement: dict[str, Any]) -> None:
        if not self.claims:
            return self.claim_anything(1)
        claim = self.claim_of(settlement["pick"])
        arguments = self.arguments(settlement)

        def call(broker: Any, side: int) -> Any:
            return getattr(broker, settlement["verb"])(replace(claim[side]), **arguments)

        live = any(claim is other for other in self.live_claims())
        answers = self.compared.call_both(call)
        assert live or not answers, "a stale claim settled its job"
        return None

    def settle_many(self, batch: list[dict[str, Any]]) -> None:
        if self.claims:
            self.settle_claims(batch, [self.claim_of(one["pick"]) for one in batch], self.live_claims())

    def renew(self, pick: int, lease: float | None) -> None:
        if self.claims:
            claim = self.claim_of(pick)
            if self.compared.call_both(lambda broker, side: broker.renew(claim[side], lease)):
                assert len({(job.lease_expires_at, job.cancel_requested) for job in claim}) == 1

    def renew_many(self, picked: list[int], lease: float | None) -> None:
        claims = [self.claim_of(pick) for pick in picked if self.claims]
        self.compared.call_both(
            lambda broker, side: broker.renew_many([claim[side] for claim in claims], lease)
        )

    def record_progress(self, picked: list[int], fraction: float) -> None:
        claims = [self.claim_of(pick) for pick in picked if self.claims]

        def reports(side: int) -> list[Progress]:
            return [Progress(claim[side].key, claim[side].claim, fraction, "so far") for claim in claims]

        self.compared.call_both(lambda broker, side: broker.record_progress(reports(side)))

    # Operations on stored jobs.

    def cancel(self, pick: int, running: bool) -> None:
        waiting = (JobState.PENDING, JobState.SCHEDULED, JobState.LIMITED)
        id = self.job_in(pick, *((JobState.RUNNING,) if running else waiting))
        self.compared.call_both(lambda broker, _: broker.cancel(id))

    def requeue(self, pick: int) -> None:
        id = self.job_in(pick, JobState.DEAD)
        self.compared.call_both(lambda broker, _: broker.requeue(id))

    def requeue_dead(self, queue: str) -> None:
        self.compared.call_both(lambda broker, _: broker.requeue_dead(queue))

    def purge_dead(self, queue: str | None) -> None:
        self.compared.call_both(lambda broker, _: broker.purge_dead(queue))

    def reschedule(self, pick: int, run_in: float | None, priority: int | None) -> None:
        id = self.job_in(pick, JobState.PENDING, JobState.SCHEDULED, JobState.LIMITED)
        self.compared.call_both(lambda broker, _: broker.reschedule(id, self.instant(run_in), priority))

    def set_limit(self, name: str, pick: int) -> None:
        limit = LIMITS[name][pick % len(LIMITS[name])]
        self.compared.call_both(
            lambda broker, _: broker.remove_limit(name) if limit is None else broker.set_limit(name, limit)
        )

    def pause(self, queue: str) -> None:
        self.compared.call_both(lambda broker, _: broker.pause(queue))

    def resume(self) -> None:
        for queue in QUEUES:
            self.resume_one(queue)

    def resume_one(self, queue: str) -> None:
        self.compared.call_both(lambda broker, _: broker.resume(queue))

    def kv(self, key: bytes, value: bytes | None) -> None:
        self.compared.call_both(
            lambda broker, _: broker.kv_delete(key) if value is None else broker.kv_put(key, value)
        )

    # Time and duties.

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def step_clock(self, seconds: float, back: bool) -> None:
        self.clock.set(self.clock.time + timedelta(seconds=-seconds if back else seconds))

    def outlast_reservations(self) -> None:
        """Let the ids that were used so far be used again."""
        self.clock.advance(ID_RESERVATION / SECOND)

    def duty(self, duty: str, later: float) -> None:
        self.clock.advance(later)
        self.compared.call_both(lambda broker, _: getattr(broker, duty)())

    def sweep_finished(self, duty: str, age: float) -> None:
        self.compared.call_both(lambda broker, _: getattr(broker, duty)(age))

    def reopen(self) -> None:
        if self.compared.persistent:
            self.compared.reopen()

    # Reads.

    def list_jobs(self, **options: Any) -> None:
        self.compared.call_both(
            lambda broker, _: broker.jobs(**options), lambda jobs: [fields(job) for job in jobs]
        )

    def get_one(self, pick: int) -> None:
        id = self.job_in(pick, *JobState)
        self.compared.call_both(lambda broker, _: broker.get(id), lambda job: job and fields(job))
        self.compared.call_both(
            lambda broker, _: broker.wait(id, 0),
            lambda waited: (waited.status, waited.job and fields(waited.job)),
        )


def check_limits(jobs: list[dict[str, Any]], limits: list[LimitInfo]) -> None:
    """Check that room is that of running jobs, and that the first job of each line has none."""
    settings = {info.name: info.settings for info in limits}
    running, pending, lines = Counter[str](), Counter[tuple[str, str]](), dict[tuple[str, str], Any]()
    for job in jobs:
        for bucket, units in job["limits"]:
            if job["state"] is JobState.RUNNING:
                running[bucket] += units
            elif job["state"] is JobState.PENDING:
                pending[bucket, job["queue"]] += units
            elif job["limited_by"] == bucket:
                place = (job["priority"], job["turn"], job["id"], units)
                line = (bucket, job["queue"])
                lines[line] = min(lines.get(line, place), place)
        assert (job["limited_by"] is not None) == (job["state"] is JobState.LIMITED)

    def name(bucket: str) -> str:
        return bucket if bucket in settings else limit_name(bucket)

    for info in limits:
        assert info.running == sum(units for bucket, units in running.items() if name(bucket) == info.name)
    for (bucket, queue), (*_, units) in lines.items():
        found = settings.get(name(bucket))
        assert found is not None, f"{bucket} has no limit, and a line"
        if found.running is not None and found.rate is None:
            taken = running[bucket] + pending[bucket, queue]
            assert taken > 0, f"no job of {bucket} can wake its line"
            assert taken + units > found.running, f"the first job in the line of {bucket} has room"


def test_every_action_has_a_method() -> None:
    assert all(callable(getattr(Program, name)) for name in ACTIONS)


@pytest.mark.timeout(360 + PROGRAMS)  # Hypothesis shrinks a failing program for up to five minutes.
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_random_programs_behave_as_on_the_reference_engine(engine: EngineUnderTest, tmp_path: Path) -> None:
    numbers = count()

    def program() -> Program:
        directory = tmp_path / f"{engine}-{next(numbers)}"
        directory.mkdir()
        kind: Callable[[], Program] = type("Program", (Program,), {"engine": engine, "directory": directory})
        return kind()

    run_state_machine_as_test(
        program,  # type: ignore[arg-type]
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
