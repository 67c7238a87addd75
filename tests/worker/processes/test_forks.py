"""A process that a job forks has no part in the job's outcome, nor in the outcomes of later jobs."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from dayjob import App, Context, JobState
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement
from dayjob.runtime.stop_signal import StopSignal
from dayjob.worker.child_messages import Called, Message, Progressed, Start, Started, claim_of, frame, packed
from dayjob.worker.child_process import ChildProcess
from tests.support.workers import record, run_until_idle, until, with_timeout
from tests.worker import process_tasks as tasks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("way", "code"), [("exit", 7), ("raise", 1), ("return", 0)])
@pytest.mark.parametrize("task", [tasks.fork, tasks.fork_async], ids=["def", "async"])
async def test_outcomes_stay_with_their_jobs_after_a_fork(
    app: App, task: Any, way: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    forking = await task.aenqueue(way)
    invoices = await tasks.invoice.aenqueue_many([(number,) for number in range(4)])
    await run_until_idle(app, concurrency=1)
    broker = await app.opened()
    job = await record(broker, forking.id)
    assert (job.state, job.result, job.progress) == (JobState.DONE, str(code).encode(), None)
    assert "the helper logs" not in caplog.text, "the helper has no connection to the worker"
    for number, handle in enumerate(invoices):
        job = await record(broker, handle.id)
        if number % 2:
            assert (job.state, job.result) == (JobState.SCHEDULED, None)
            assert str(job.last_error).startswith(f"ValueError: invoice {number} is odd\n")
        else:
            assert (job.state, job.result) == (JobState.DONE, str(number).encode())


async def test_messages_of_another_claim_are_ignored(app: App) -> None:
    await tasks.pid.aenqueue()
    broker = await app.opened()
    [job] = await broker.claim(["default"])
    await broker.release(job)
    [again] = await broker.claim(["default"])
    assert again.id == job.id
    reported: list[float] = []
    started: list[bool] = []
    context = Context(again, StopSignal(), report=lambda _, fraction, __: reported.append(fraction))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = ChildProcess("test", ours)
        start = Start([], "", False, ("", ""), {}, None, None, {}, "release")
        running = asyncio.create_task(child.run(start, context, lambda: started.append(True)))
        await until(lambda: not child.usable)

        def messages(of: Any, fraction: float, result: bytes) -> list[Message]:
            claim = claim_of(of)
            ended = packed(Settlement(of, Transition.ACK, result=result))
            return [Started(claim), Called(claim), Progressed(claim, fraction, ""), ended]

        child.data_received(b"".join(map(frame, messages(job, 0.1, b"1"))))
        assert (started, reported, child.usable) == ([], [], False)
        child.data_received(b"".join(map(frame, messages(again, 0.2, b"2"))))
        assert (await with_timeout(running)).result == b"2"
        assert (started, reported) == ([True], [0.2])
