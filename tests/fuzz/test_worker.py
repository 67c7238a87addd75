"""Any payload and headers for a task: the run is done or dead, and the worker continues."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dayjob import App, BrokerConfig, Context, JobState, Retention, Worker
from tests.fuzz.inputs import ANY_TEXT, few
from tests.support.bound import BOUND
from tests.support.waiting import with_timeout

DAY = 24 * 3600
CONFIG = BrokerConfig(retention=Retention(done=DAY, dead=DAY))

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)
NAME = st.sampled_from(["count", "order", "when", "values", "args", "kwargs", "self", "context", "*", ""])
CALL = st.dictionaries(NAME, VALUE, max_size=4).map(lambda call: json.dumps(call).encode())
PAYLOAD = (
    CALL | st.binary(max_size=60) | st.sampled_from([b"[" * 100_000, b'{"count": 1e999}', b"\xef\xbb\xbf{}"])
)
STORABLE = ANY_TEXT.map(lambda text: text.replace("\0", "").encode(errors="ignore").decode())
HEADERS = st.dictionaries(
    st.sampled_from(["traceparent", "tracestate", "baggage", "dayjob-x"]), STORABLE, max_size=2
)


@dataclass
class Order:
    id: int
    lines: list[str]


def app_with_tasks() -> App:
    app = App("memory://", config=CONFIG)

    @app.task(name="typed")
    async def typed(count: int, order: Order | None = None, *, when: datetime | None = None) -> Any:
        return [count, order, when]

    @app.task(name="loose")
    async def loose(context: Context, values: Any = None, *args: Any, **kwargs: Any) -> Any:
        return [context.attempt, values, args, kwargs]

    @app.task(name="plain")
    def plain(values: list[dict[str, float]]) -> int:
        return len(values)

    return app


def test_any_payload_ends_its_run_and_not_the_worker() -> None:
    with asyncio.Runner() as runner:
        app = app_with_tasks()
        worker = Worker(app, unknown_task="dead")
        runner.run(worker.start())

        async def run(task: str, payload: bytes, headers: dict[str, str]) -> JobState:
            new = await app.broker.enqueue("default", payload, task=task, headers=headers, max_attempts=1)
            await with_timeout(app.broker.wait(new.id, timeout=BOUND))
            job = await app.broker.get(new.id)
            assert job is not None
            return job.state

        @given(st.sampled_from(sorted(app.tasks)), PAYLOAD, HEADERS)
        @few()
        def check(task: str, payload: bytes, headers: dict[str, str]) -> None:
            assert runner.run(run(task, payload, headers)) in (JobState.DONE, JobState.DEAD)

        check()
        assert worker.is_running
        assert runner.run(run("typed", b'{"count": 1}', {})) is JobState.DONE
        worker.stop()
        runner.run(worker.wait_stopped())
