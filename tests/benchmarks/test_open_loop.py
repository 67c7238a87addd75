"""The open-loop producer: it keeps its times also while the queue stalls, and charges the queue for that."""

from __future__ import annotations

import asyncio
import math

import pytest

from benchmarks.offered_load import Load, latency_result
from benchmarks.open_loop import arrivals, produce_at, since, stamp_of, window_p99s


def test_arrivals_are_the_same_in_each_run_and_have_the_rate() -> None:
    moments = arrivals(1000, 20)
    assert moments == arrivals(1000, 20)
    assert moments == sorted(moments)
    assert len(moments) == 20_000
    assert moments[-1] == pytest.approx(20, rel=0.05)


async def test_a_call_that_does_not_return_delays_no_other_call() -> None:
    called: list[float] = []
    blocked = asyncio.Event()

    async def put(stamp: float) -> None:
        called.append(stamp)
        if len(called) == 1:
            await blocked.wait()
        elif len(called) == 3:
            blocked.set()

    took = await produce_at(put, [0.0, 0.0, 0.0])
    assert len(called) == len(took) == 3


def test_a_late_timer_is_not_charged_and_a_stall_is() -> None:
    assert stamp_of(due=10.0, now=10.0015) == 10.0015
    assert stamp_of(due=10.0, now=10.3) == 10.0


def test_a_failed_enqueue_fails_the_measure() -> None:
    async def put(stamp: float) -> None:
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        asyncio.run(produce_at(put, [0.0]))


def test_latencies_omit_the_warm_up_and_count_missing_jobs_as_infinite() -> None:
    passed = [(0.5, 9.0), (1.0, 1.1), (1.5, 1.9)]
    assert since(1.0, 3, passed) == pytest.approx([0.1, 0.4, math.inf])


def test_the_p99_of_a_window_is_that_of_the_jobs_due_in_it() -> None:
    passed = [(0.5, 9.0), (1.0, 1.1), (1.9, 2.4), (3.2, 3.3)]
    assert window_p99s(1.0, passed) == pytest.approx([0.5, 0.1])


def load(*start: float) -> Load:
    sides = {"enqueue-p50": 0.001}
    return Load(start=start, settled=[], windows=[], sides=sides, jobs=len(start), rate=40.0)


def test_the_result_of_a_load_is_its_p99() -> None:
    result = latency_result("offered-load", "redis", "defaults, 100/s", load(0.001, 0.002, 0.003))
    assert result.value_text == "3 ms"
    assert result.figures == "p50 2 ms; enqueued p50 1 ms"


def test_the_result_of_a_worker_that_falls_behind_is_its_rate() -> None:
    result = latency_result("offered-load", "redis", "defaults, 100/s", load(0.001, math.inf))
    assert result.description == "defaults, 100/s: falls behind, started"
    assert result.value_text == "40/s"
