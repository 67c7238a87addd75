"""The loop that runs a duty: start and stop, signals, back-off after failures."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import pytest

from dayjob import Closed, EngineFenced, EngineUnavailable
from dayjob.duties.service import Service
from dayjob.runtime.clock import SYSTEM, block
from dayjob.runtime.signals import CANCEL, DUE, Signals, Topic
from dayjob.testing import ManualClock
from tests.support.bound import BOUND
from tests.support.staging import Gate, ObservedClock, turns


class Scripted:
    """A duty that follows its script, and then runs every minute."""

    name = "scripted"
    topics: tuple[Topic, ...] = (DUE,)

    def __init__(self, *script: float | Exception | Gate | None) -> None:
        self._script = deque(script)
        self.runs = 0

    async def run_once(self) -> float | None:
        self.runs += 1
        step = self._script.popleft() if self._script else 60.0
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Gate):
            await step.passed()
            return 60.0
        return step


@pytest.fixture
def signals() -> Signals:
    return Signals()


@pytest.fixture
def observed(clock: ManualClock) -> ObservedClock:
    return ObservedClock(clock)


async def test_a_service_started_twice_runs_its_duty_once(
    signals: Signals, clock: ManualClock, observed: ObservedClock
) -> None:
    duty = Scripted()
    service = Service(duty, signals, observed)
    service.start()
    service.start()
    assert await observed.next_wait() == 60
    await turns()
    assert duty.runs == 1
    clock.advance(60)
    await observed.next_wait()
    assert duty.runs == 2
    await service.stop()


async def test_a_service_is_stopped_in_the_turn_in_which_its_wait_times_out(signals: Signals) -> None:
    """The timeout cancels the task for a moment, too. That must not hide the stop."""
    duty = Scripted(1)
    service = Service(duty, signals, SYSTEM)
    service.start()
    await turns()
    loop = asyncio.get_running_loop()
    resumed = loop.create_future()
    loop.call_later(0.1, resumed.set_result, None)
    block(1.1)  # Both times are over: this task is resumed first, then the timeout cancels the service.
    await resumed
    async with asyncio.timeout(BOUND):
        await service.stop()
    assert duty.runs == 1


async def test_a_service_can_be_stopped_before_its_start_and_twice(
    signals: Signals, clock: ManualClock, observed: ObservedClock
) -> None:
    duty = Scripted()
    service = Service(duty, signals, observed)
    await service.stop()
    service.start()
    await service.stop()
    assert duty.runs == 0, "stopped before its first turn"
    service.start()
    await observed.next_wait()
    await service.stop()
    await service.stop()
    clock.advance(600)
    signals.publish([DUE])
    await turns()
    assert duty.runs == 1
    assert not signals.topics, "it no longer listens"


async def test_a_stopped_service_can_be_started_again(signals: Signals, observed: ObservedClock) -> None:
    duty = Scripted()
    service = Service(duty, signals, observed)
    for runs in (1, 2, 3):
        service.start()
        await observed.next_wait()
        assert duty.runs == runs
        await service.stop()


async def test_a_stop_ends_the_run_under_way(signals: Signals, observed: ObservedClock) -> None:
    gate = Gate()
    service = Service(Scripted(gate), signals, observed)
    service.start()
    await gate.reached()
    await service.stop()
    assert observed.unseen == 0


async def test_a_failure_is_followed_by_a_growing_pause(
    signals: Signals, clock: ManualClock, observed: ObservedClock, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [ValueError("a bug"), *[EngineUnavailable("no reply")] * 7]
    service = Service(Scripted(*failures, 30.0, OSError("again")), signals, observed)
    service.start()
    pauses = []
    for _ in range(10):
        pause = await observed.next_wait()
        assert pause is not None
        pauses.append(pause)
        clock.advance(pause)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 30.0, 0.1], "and starts small after a success"
    await service.stop()
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(logged) == 9
    assert "the scripted duty failed" in logged[0].getMessage()
    assert logged[0].exc_info is not None


async def test_a_signal_does_not_cut_the_pause_after_a_failure_short(
    signals: Signals, clock: ManualClock, observed: ObservedClock
) -> None:
    duty = Scripted(ValueError("a bug"))
    service = Service(duty, signals, observed)
    service.start()
    await observed.next_wait()
    clock.advance(0.05)
    signals.publish([DUE])
    await turns()
    assert duty.runs == 1, "not even after its signal"
    clock.advance(0.05)
    await observed.next_wait()
    assert duty.runs == 2
    await service.stop()


@pytest.mark.parametrize("error", [Closed("not open"), EngineFenced("taken over")], ids=["closed", "fenced"])
async def test_a_closed_or_fenced_engine_ends_the_loop_without_an_error(
    signals: Signals, observed: ObservedClock, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    duty = Scripted(error)
    service = Service(duty, signals, observed)
    service.start()
    await turns()
    assert not signals.topics
    assert observed.unseen == 0
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    await service.stop()
    service.start()
    await observed.next_wait()
    assert duty.runs == 2
    await service.stop()


async def test_a_signal_runs_the_duty_before_its_delay_is_over(
    signals: Signals, observed: ObservedClock
) -> None:
    duty = Scripted()
    service = Service(duty, signals, observed)
    service.start()
    await observed.next_wait()
    signals.publish([CANCEL])
    await turns()
    assert duty.runs == 1, "that was not its signal"
    signals.publish([DUE])
    await observed.next_wait()
    assert duty.runs == 2
    signals.publish_all()
    await observed.next_wait()
    assert duty.runs == 3
    await service.stop()


async def test_a_signal_during_a_run_is_not_lost(signals: Signals, observed: ObservedClock) -> None:
    gate = Gate()
    duty = Scripted(gate)
    service = Service(duty, signals, observed)
    service.start()
    await gate.reached()
    signals.publish([DUE])
    gate.open()
    await observed.next_wait()
    await observed.next_wait()
    assert duty.runs == 2
    await service.stop()


async def test_a_duty_may_wait_for_signals_only(
    signals: Signals, clock: ManualClock, observed: ObservedClock
) -> None:
    duty = Scripted(None, None)
    service = Service(duty, signals, observed)
    service.start()
    assert await observed.next_wait() is None
    clock.advance(10**6)
    await turns()
    assert duty.runs == 1
    signals.publish([DUE])
    await observed.next_wait()
    assert duty.runs == 2
    await service.stop()


async def test_services_do_not_wait_for_each_other(signals: Signals, observed: ObservedClock) -> None:
    gate = Gate()
    stuck, free = Scripted(gate), Scripted()
    services = [Service(duty, signals, observed) for duty in (stuck, free)]
    for service in services:
        service.start()
    await gate.reached()
    await observed.next_wait()
    assert (stuck.runs, free.runs) == (1, 1)
    await asyncio.gather(*(service.stop() for service in services))
