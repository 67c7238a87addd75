"""Schedules: stored by id, fired once for each due time, listed, paused, triggered and removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dayjob import App, Broker, ConfigError, InvalidState, JobState, Recurring
from dayjob.broker.schedules import KIND, LONGEST_WAIT
from dayjob.engines.base import Contended, DocumentWrite
from dayjob.model.durations import SECOND
from dayjob.model.recurring import MAX_MISSED, Schedule
from tests.support.arrange import OpenBroker, quiet, record
from tests.support.registered_workers import elsewhere
from tests.support.waiting import WatchedClock, with_timeout

HOSTILE = ["a:b", "%s", "'\"; drop table", "😀", "a\nb", "{}", "*", " ", "x" * 1024, "é", "e\u0301"]


async def only(broker: Broker) -> Schedule:
    [schedule] = await broker.schedules()
    return schedule


async def due_times(broker: Broker, queue: str = "q") -> list[datetime]:
    """Return the due times that fired, from the stored jobs."""
    jobs = await broker.jobs(queue, limit=10_000)
    return sorted(datetime.fromisoformat(job.headers["dayjob-due"]) for job in jobs)


# Store, list, change, remove.


async def test_a_new_storage_has_no_schedules(broker: Broker) -> None:
    assert await broker.schedules() == []
    assert await broker.recur() == LONGEST_WAIT


async def test_a_schedule_is_listed_with_its_last_and_next_time(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    stored = await broker.schedule(Recurring("s", cron="*/5 * * * *", task="t", queue="q"))
    other = await open_broker()
    assert await other.schedules() == [stored]
    assert (stored.next_at, stored.last_at) == (clock.time + timedelta(minutes=5), None)
    clock.advance(300)
    await broker.recur()
    fired = await only(other)
    assert (fired.next_at, fired.last_at) == (clock.time + timedelta(minutes=5), clock.time)


async def test_schedules_are_listed_by_id(broker: Broker) -> None:
    for id in HOSTILE:
        await broker.schedule(Recurring(id, every=60, queue="q"))
    assert [each.id for each in await broker.schedules()] == sorted(HOSTILE, key=str.encode)


@pytest.mark.parametrize("id", HOSTILE, ids=ascii)
async def test_a_schedule_id_may_be_any_text(broker: Broker, clock: WatchedClock, id: str) -> None:
    await broker.schedule(Recurring(id, every=60, queue="q"))
    clock.advance(60)
    await broker.recur()
    [job] = await broker.jobs()
    assert job.headers["dayjob-schedule"] == id
    assert (await broker.trigger(id)).created
    assert await broker.pause_schedule(id)
    assert await broker.resume_schedule(id)
    assert await broker.unschedule(id)
    assert await broker.schedules() == []


async def test_scheduling_again_keeps_last_and_next_time(broker: Broker, clock: WatchedClock) -> None:
    recurring = Recurring("s", every=60, queue="q")
    await broker.schedule(recurring)
    clock.advance(60)
    await broker.recur()
    before = await only(broker)
    clock.advance(30)
    assert await broker.schedule(recurring) == before
    changed = await broker.schedule(Recurring("s", every=60, queue="other", priority=5))
    assert (changed.last_us, changed.next_us) == (before.last_us, before.next_us)
    assert (changed.queue, changed.priority) == ("other", 5)


async def test_a_changed_expression_applies_at_once(broker: Broker, clock: WatchedClock) -> None:
    await broker.schedule(Recurring("s", cron="@daily", queue="q"))
    clock.advance(90)
    changed = await broker.schedule(Recurring("s", cron="* * * * *", queue="q"))
    assert changed.next_at == clock.time + timedelta(seconds=30)
    clock.advance(30)
    await broker.recur()
    assert await due_times(broker) == [clock.time]


async def test_unschedule_returns_whether_the_schedule_existed(broker: Broker, clock: WatchedClock) -> None:
    await broker.schedule(Recurring("s", every=60, queue="q"))
    clock.advance(60)
    await broker.recur()
    assert await broker.unschedule("s")
    assert not await broker.unschedule("s")
    clock.advance(600)
    assert await broker.recur() == LONGEST_WAIT
    assert len(await broker.jobs()) == 1, "its enqueued jobs stay"


# Firing.


async def test_a_job_is_enqueued_at_its_time_and_not_before(broker: Broker, clock: WatchedClock) -> None:
    await broker.schedule(
        Recurring(
            "s", every=2, task="t", args={"n": 1}, queue="q", priority=7, max_attempts=9,
            headers={"a": "b"}, tenant="acme",
        )
    )  # fmt: skip
    clock.advance(1.5)
    assert await broker.recur() == SECOND // 2
    assert await broker.jobs() == []
    clock.advance(0.5)
    assert await broker.recur() == 2 * SECOND
    [job] = await broker.jobs()
    assert (job.state, job.queue, job.task, job.payload) == (JobState.PENDING, "q", "t", b'{"n":1}')
    assert (job.priority, job.max_attempts, job.tenant) == (7, 9, "acme")
    assert job.headers == {"a": "b", "dayjob-schedule": "s", "dayjob-due": clock.time.isoformat()}
    assert [claim.id for claim in await broker.claim("q")] == [job.id]


async def test_a_task_is_called_with_its_arguments(url: str, broker: Broker, clock: WatchedClock) -> None:
    app = App(url)

    @app.task(name="greet", queue="mail", priority=3)
    def greet(who: str, times: int = 1) -> None: ...

    await broker.schedule(Recurring("by position", every=1, task=greet, args=("ada",)))
    await broker.schedule(Recurring("by name", every=1, task=greet, args={"who": "eve", "times": 2}))
    await broker.schedule(Recurring("elsewhere", every=1, task=greet, args=("bob",), queue="slow"))
    clock.advance(1)
    await broker.recur()
    jobs = {job.headers["dayjob-schedule"]: job for job in await broker.jobs()}
    for id, call, queue in [
        ("by position", greet.bind("ada"), "mail"),
        ("by name", greet.bind("eve", 2), "mail"),
        ("elsewhere", greet.bind("bob"), "slow"),
    ]:
        assert jobs[id].payload == call.new_job().payload
        assert (jobs[id].task, jobs[id].queue, jobs[id].priority) == ("greet", queue, 3)


async def test_a_payload_is_enqueued_for_a_raw_handler(broker: Broker, clock: WatchedClock) -> None:
    await broker.schedule(Recurring("s", every=1, queue="raw", payload=b"\x00\xff"))
    clock.advance(1)
    await broker.recur()
    [job] = await broker.claim("raw")
    assert (job.task, job.payload) == ("", b"\x00\xff")


async def test_the_job_id_is_derived_from_schedule_and_due_time(
    broker: Broker, clock: WatchedClock, open_broker: OpenBroker
) -> None:
    """A due time that fires again, after a restore of old documents, finds the existing job."""
    await broker.schedule(Recurring("s", every=60, queue="q"))
    await broker.schedule(Recurring("s2", every=60, queue="q"))
    _, old = await broker._engine.documents(KIND)
    clock.advance(60)
    await broker.recur()
    first = await broker.jobs()
    assert len({job.id for job in first}) == 2
    millis = f"{clock.now() // 1000:012x}"
    assert {job.id[:13] for job in first} == {f"{millis[:8]}-{millis[8:]}"}
    _, new = await broker._engine.documents(KIND)
    writes = [DocumentWrite(KIND, a.name, b.value, a.value) for a, b in zip(old, new, strict=True)]
    assert await broker._engine.compare_and_set(writes)
    await broker.recur()
    assert await broker.jobs() == first


async def test_concurrent_brokers_fire_each_due_time_once(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    brokers = [await open_broker() for _ in range(4)]
    for number in range(10):
        await brokers[0].schedule(Recurring(f"s{number}", every=1, queue=f"q{number}", missed="all"))
    begun = clock.time
    for step in (1, 1, 3, 1, 17, 1):
        clock.advance(step)
        await with_timeout(asyncio.gather(*(broker.recur() for broker in brokers for _ in range(2))))
    for number in range(10):
        expected = [begun + timedelta(seconds=second) for second in range(1, 25)]
        assert await due_times(brokers[1], f"q{number}") == expected
    assert {each.last_at for each in await brokers[2].schedules()} == {clock.time}


async def test_a_change_that_races_with_firing_is_not_lost(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    firing, changing = await open_broker(), await open_broker()
    await firing.schedule(Recurring("s", every=1, queue="q"))
    for number in range(20):
        clock.advance(1)
        _, stored = await with_timeout(
            asyncio.gather(
                firing.recur(), changing.schedule(Recurring("s", every=1, queue="q", priority=number))
            )
        )
        assert stored.priority == number
        assert (await only(firing)).priority == number
    await firing.recur()
    assert len(await due_times(firing)) == 20


async def test_a_change_that_is_refused_is_made_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has changed the schedule after it was read."""
    compare_and_set = broker._engine.compare_and_set
    refusals = [False]

    async def refuse_once(*arguments: Any, **options: Any) -> bool:
        return refusals.pop() if refusals else await compare_and_set(*arguments, **options)

    monkeypatch.setattr(broker._engine, "compare_and_set", refuse_once)
    await broker.schedule(Recurring("s", every=60, queue="q"))
    assert (await only(broker)).id == "s"


async def test_the_schedule_and_its_jobs_commit_together(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One write holds both, so a crash loses neither."""
    await broker.schedule(Recurring("a", every=60, queue="q"))
    await broker.schedule(Recurring("b", every=60, queue="q"))
    compare_and_set = broker._engine.compare_and_set
    calls: list[tuple[int, int]] = []

    async def fails(writes: Any, jobs: Any, *_: Any, **__: Any) -> bool:
        calls.append((len(writes), len(jobs)))
        raise InvalidState("crashed before the commit")

    async def dies(*arguments: Any, **named: Any) -> bool:
        await compare_and_set(*arguments, **named)
        raise InvalidState("crashed after the commit")

    clock.advance(60)
    before = await broker.schedules()
    monkeypatch.setattr(broker._engine, "compare_and_set", fails)
    with pytest.raises(InvalidState, match="before"):
        await broker.recur()
    assert calls == [(2, 2)]
    assert (await broker.schedules(), await broker.jobs()) == (before, [])
    monkeypatch.setattr(broker._engine, "compare_and_set", dies)
    with pytest.raises(InvalidState, match="after"):
        await broker.recur()
    monkeypatch.undo()
    await (await open_broker()).recur()
    assert await due_times(broker) == [clock.time] * 2


@pytest.mark.parametrize(("missed", "hours"), [("skip", []), ("once", [5]), ("all", [1, 2, 3, 4, 5])])
async def test_the_due_times_of_a_downtime_fire_by_missed(
    broker: Broker, clock: WatchedClock, missed: Any, hours: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    begun = clock.time
    await broker.schedule(Recurring("s", cron="@hourly", queue="q", missed=missed))
    clock.advance(5.5 * 3600)
    await broker.recur()
    assert await due_times(broker) == [begun + timedelta(hours=hour) for hour in hours]
    assert (await only(broker)).next_at == begun + timedelta(hours=6)
    left_out = f"{5 - len(hours)} due times were missed and are left out"
    assert (left_out in caplog.text) == (missed != "all")


async def test_the_number_of_missed_due_times_is_bounded_and_logged(
    broker: Broker, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    for id in ("a", "b", "c"):
        await broker.schedule(Recurring(id, every=1, queue=id, missed="all"))
    clock.advance(1200)
    assert await with_timeout(broker.recur()) == SECOND
    for id in ("a", "b", "c"):
        times = await due_times(broker, id)
        assert (len(times), times[-1]) == (MAX_MISSED, clock.time)
    assert caplog.text.count("200 due times were missed and are left out") == 3


async def test_due_times_across_a_daylight_saving_change(broker: Broker, clock: WatchedClock) -> None:
    clock.set(datetime(2026, 10, 24, 12, tzinfo=UTC))
    await broker.schedule(Recurring("s", cron="30 2 * * *", timezone="Europe/Berlin", queue="q"))
    for _ in range(48 * 4):
        clock.advance(900)
        await broker.recur()
    assert await due_times(broker) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    ]  # fmt: skip


async def test_the_dedup_of_a_task_prevents_overlapping_runs(
    url: str, broker: Broker, clock: WatchedClock
) -> None:
    app = App(url)

    @app.task(name="report", queue="q", dedup=True)
    def report() -> None: ...

    await broker.schedule(Recurring("s", every=60, task=report))
    for _ in range(3):
        clock.advance(60)
        await broker.recur()
    assert len(await broker.jobs()) == 1
    assert (await only(broker)).last_at == clock.time


# Pause and trigger.


async def test_a_paused_schedule_does_not_fire_and_resumes_at_its_next_time(
    broker: Broker, clock: WatchedClock
) -> None:
    begun = clock.time
    await broker.schedule(Recurring("s", every=60, queue="q", missed="all"))
    assert await broker.pause_schedule("s")
    assert await broker.pause_schedule("s")
    paused = await only(broker)
    assert (paused.paused, paused.next_at) == (True, None)
    clock.advance(150)
    assert await broker.recur() == LONGEST_WAIT
    assert await broker.jobs() == []
    assert await broker.resume_schedule("s")
    assert await broker.resume_schedule("s")
    assert await broker.recur() == LONGEST_WAIT
    clock.advance(30)
    await broker.recur()
    assert await due_times(broker) == [begun + timedelta(seconds=180)]


async def test_a_trigger_enqueues_now_and_leaves_the_times_unchanged(
    broker: Broker, clock: WatchedClock
) -> None:
    await broker.schedule(Recurring("s", every=60, task="t", queue="q"))
    await broker.pause_schedule("s")
    before = await only(broker)
    clock.advance(10)
    first, second = await broker.trigger("s"), await broker.trigger("s")
    assert first.created
    assert second.created
    assert first.id != second.id
    job = await record(broker, first.id)
    assert (job.task, job.headers) == ("t", {"dayjob-schedule": "s", "dayjob-attempts": "task"})
    assert await only(broker) == before


async def test_pausing_or_triggering_an_unknown_schedule_is_refused(broker: Broker) -> None:
    assert not await broker.pause_schedule("unknown")
    assert not await broker.resume_schedule("unknown")
    assert not await broker.unschedule("unknown")
    with pytest.raises(InvalidState, match="there is no schedule 'unknown'"):
        await broker.trigger("unknown")


# Schedules that can't fire.


async def test_an_unknown_task_is_logged_once_and_retried(
    broker: Broker, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    begun = clock.time
    await broker.register(elsewhere("w-1", tasks=("other",), dead_after=10**12))
    await broker.schedule(Recurring("s", every=60, task="t", queue="q"))
    await broker.schedule(Recurring("well", every=60, task="other", queue="well"))
    clock.advance(60)
    with caplog.at_level(logging.ERROR, "dayjob.schedules"):
        for _ in range(4):
            assert await broker.recur() == SECOND, "soon again"
            clock.advance(1)
    assert caplog.text.count("is due and does not fire") == 1
    stuck, well = await broker.schedules()
    assert stuck.problem == "no live worker has the task 't'"
    assert (stuck.next_at, stuck.last_at) == (begun + timedelta(seconds=60), None)
    assert (well.problem, await due_times(broker, "well")) == (None, [begun + timedelta(seconds=60)])
    await broker.register(elsewhere("w-2", tasks=("t",), dead_after=10**12))
    await broker.recur()
    assert await due_times(broker) == [begun + timedelta(seconds=60)]
    assert (await broker.schedules())[0].problem is None


async def test_a_schedule_fires_without_any_live_worker(broker: Broker, clock: WatchedClock) -> None:
    """Jobs may be claimed through the broker, and workers may come back."""
    await broker.schedule(Recurring("s", every=60, task="t", queue="q"))
    clock.advance(60)
    await broker.recur()
    assert await due_times(broker) == [clock.time]


async def test_a_schedule_whose_job_is_refused_does_not_block_others(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A process may have a lower limit than the one that stored the schedule."""
    strict = await open_broker(quiet(max_payload=10))
    await broker.schedule(Recurring("big", every=60, queue="q", payload=b"x" * 11))
    await broker.schedule(Recurring("small", every=60, queue="small", payload=b"x"))
    clock.advance(60)
    due = clock.time
    with caplog.at_level(logging.ERROR, "dayjob.schedules"):
        for _ in range(3):
            await strict.recur()
    assert caplog.text.count("'big' is due and does not fire") == 1
    big, _ = await broker.schedules()
    assert big.problem is not None
    assert "PayloadTooLarge" in big.problem
    assert await due_times(broker, "small") == [due]
    clock.advance(5)
    await broker.recur()
    assert await due_times(broker) == [due]
    assert (await broker.schedules())[0].problem is None


async def test_a_time_zone_unknown_on_this_machine_does_not_block_others(
    broker: Broker, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.schedule(Recurring("berlin", cron="* * * * *", timezone="Europe/Berlin", queue="q"))
    await broker.schedule(Recurring("well", every=60, queue="well"))

    def unknown(expression: str, timezone: str) -> Any:
        raise ConfigError(f"timezone={timezone!r} is unknown")

    monkeypatch.setattr("dayjob.model.recurring.cron", unknown)
    clock.advance(60)
    due = clock.time
    assert await broker.recur() == SECOND
    assert await due_times(broker, "well") == [due]
    assert "is unknown" in str((await broker.schedules())[0].problem)
    monkeypatch.undo()
    await broker.recur()
    assert await due_times(broker) == [due]


# Schedules whose dedup key is held by an open transaction of another client.


class HeldKeys:
    """Keys that an engine can't write, as if open transactions of another client held them."""

    def __init__(self, broker: Broker, *keys: str) -> None:
        self.keys = set(keys)
        self.tries = 0
        self.on_contended: Callable[[], object] = lambda: None
        engine: Any = broker._engine
        self._compare_and_set = engine.compare_and_set
        engine.compare_and_set = self._call

    async def _call(self, writes: Any, jobs: Any = (), *rest: Any, **named: Any) -> bool:
        if any(job.dedup_key in self.keys for job in jobs):
            self.tries += 1
            self.on_contended()
            raise Contended("locked by another client")
        written: bool = await self._compare_and_set(writes, jobs, *rest, **named)
        return written


def keyed(url: str, *names: str) -> list[Recurring]:
    """Return recurring jobs with a dedup key each, every second."""
    app = App(url)

    def nothing() -> None: ...

    return [
        Recurring(name, every=1, task=app.task(name=name, queue=name, dedup=True)(nothing), missed="skip")
        for name in names
    ]


async def test_a_held_dedup_key_stops_no_other_schedule(
    url: str, broker: Broker, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    begun = clock.time
    for recurring in (*keyed(url, "free", "held"), Recurring("plain", every=1, queue="plain", missed="skip")):
        await broker.schedule(recurring)
    stored = {each.id: each for each in await broker.schedules()}
    held = HeldKeys(broker, str(stored["held"].dedup_key))
    for _ in range(30):
        clock.advance(1)
        assert await broker.recur() == SECOND
        for job in await broker.claim("free"):
            await broker.ack(job)
    schedules = {each.id: each for each in await broker.schedules()}
    assert "an open transaction of another client holds its dedup key" in str(schedules["held"].problem)
    assert (schedules["held"].last_at, schedules["held"].next_at) == (None, begun + timedelta(seconds=1))
    assert (schedules["free"].problem, schedules["plain"].problem) == (None, None)
    assert await due_times(broker, "plain") == [begun + timedelta(seconds=n) for n in range(1, 31)]
    assert (await broker.stats("free")).done == 30
    assert caplog.text.count("'held' is due and does not fire") == 1
    held.keys.clear()
    await broker.recur()
    assert await due_times(broker, "held") == [begun + timedelta(seconds=1)]
    fired = {each.id: each for each in await broker.schedules()}["held"]
    assert (fired.problem, fired.last_at) == (None, clock.time)
    assert "are left out" not in caplog.text


async def test_due_times_while_a_dedup_key_was_held_are_not_missed_in_another_process(
    url: str, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    """The hold-up is stored: a new leader does not take it for a downtime."""
    first, second = await open_broker(), await open_broker()
    [recurring] = keyed(url, "held")
    await first.schedule(recurring)
    HeldKeys(first, str((await only(first)).dedup_key))
    clock.advance(1)
    due = clock.time
    await first.recur()
    clock.advance(600)
    await second.recur()
    assert await due_times(second, "held") == [due]


async def test_a_schedule_that_falls_due_while_others_are_contended_fires_before_they_are_tried(
    url: str, broker: Broker, clock: WatchedClock
) -> None:
    """Each contended try takes a while."""
    names = [f"held {number}" for number in range(10)]
    for recurring in (*keyed(url, *names), Recurring("plain", every=1, queue="plain", missed="skip")):
        await broker.schedule(recurring)
    begun = clock.time
    held = HeldKeys(broker, *(each.dedup_key for each in await broker.schedules() if each.dedup_key))
    held.on_contended = lambda: clock.advance(0.25)
    clock.advance(1)
    await broker.recur()
    assert held.tries == 11, "together, then each once"
    passed = int((clock.time - begun).total_seconds())
    assert passed == 3
    assert await due_times(broker, "plain") == [begun + timedelta(seconds=n) for n in range(1, passed + 1)]
