"""The log of runs: one line each, at info where a person reads them, else at debug."""

from __future__ import annotations

import logging

import pytest

from dayjob import App, BrokerConfig, Context, Retry, Snooze, Worker
from dayjob.worker.job_log import SHORT_ID
from tests.support.workers import KEEP_ALL, with_timeout


@pytest.fixture
def app() -> App:
    app = App("memory://", config=BrokerConfig(retention=KEEP_ALL))

    @app.task(name="work", retry=Retry.none())
    async def work(ctx: Context, kind: str) -> None:
        ctx.log.info("at work")
        if kind == "fail":
            raise ValueError("no luck")
        if kind == "snooze":
            raise Snooze(60)

    return app


async def logged(
    app: App, kind: str, caplog: pytest.LogCaptureFixture, log_jobs: bool
) -> list[logging.LogRecord]:
    """Return the records of one run, without that of the handler."""
    async with app:
        enqueued = await app.broker.enqueue(
            "default", b'{"kind": "%b"}' % kind.encode(), task="work", tenant="acme", max_attempts=1
        )
        with caplog.at_level(logging.DEBUG, "dayjob.job"):
            await with_timeout(Worker(app, name="wanda", log_jobs=log_jobs).run_until_idle())
        records = [entry for entry in caplog.records if entry.name == "dayjob.job"]
        for entry in records:
            fields = vars(entry)
            assert fields["job_id"] == enqueued.id
            assert (fields["queue"], fields["task"], fields["tenant"]) == ("default", "work", "acme")
            assert fields["worker"].startswith("wanda-")
        return [entry for entry in records if entry.getMessage() != "at work"]


@pytest.mark.parametrize(("kind", "outcome"), [("return", "succeeded"), ("snooze", "was snoozed")])
@pytest.mark.parametrize("log_jobs", [True, False])
async def test_a_run_is_one_line_at_info_or_debug(
    app: App, caplog: pytest.LogCaptureFixture, kind: str, outcome: str, log_jobs: bool
) -> None:
    started, ended = await logged(app, kind, caplog, log_jobs=log_jobs)
    assert started.levelno == logging.DEBUG
    assert ended.levelno == (logging.INFO if log_jobs else logging.DEBUG)
    assert ended.getMessage() == f"Job {vars(ended)['job_id'][:SHORT_ID]} {outcome}"
    assert vars(ended)["seconds"] >= 0


async def test_a_failure_is_one_line_with_its_duration(app: App, caplog: pytest.LogCaptureFixture) -> None:
    _, ended = await logged(app, "fail", caplog, log_jobs=True)
    assert ended.levelno == logging.ERROR
    assert "is dead: ValueError: no luck" in ended.getMessage()
    assert vars(ended)["seconds"] >= 0


async def test_lines_below_the_log_level_cost_no_events(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dayjob.job"):
        async with app:
            await with_timeout(Worker(app, log_jobs=True).run_until_idle())
    assert app.events.wanted == {"job.retrying", "job.dead"}
