"""The actions of forms and of the JSON API, and their lines in the audit log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from dayjob import Broker, EngineUnavailable, Job, JobState, Limit, Recurring
from dayjob.dashboard import bulk
from dayjob.runtime.clock import SYSTEM
from tests.dashboard.browsing import BEARER, TOKEN, Browser, browse, make_dead, make_running, rows
from tests.support.bound import BOUND


async def fetch(broker: Broker, id: str) -> Job:
    job = await broker.get(id)
    assert job is not None
    return job


def redirects(answer: httpx.Response, path: str, code: str) -> bool:
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].startswith(path) and f"message={code}" in answer.headers["location"]


async def test_cancelling_a_pending_job_ends_it(browser: Browser, broker: Broker) -> None:
    id = (await broker.enqueue("email")).id
    answer = await browser.post(f"/jobs/{id}/cancel")
    assert redirects(answer, f"/jobs/{id}?", "cancelled")
    assert (await fetch(broker, id)).state is JobState.CANCELLED
    assert "Job cancelled." in await browser.text(answer.headers["location"])


async def test_cancelling_a_running_job_requests_its_cancel(browser: Browser, broker: Broker) -> None:
    job = await make_running(broker)
    assert redirects(await browser.post(f"/jobs/{job.id}/cancel"), f"/jobs/{job.id}?", "cancel-requested")
    assert (await fetch(broker, job.id)).cancel_requested
    assert 'action="/jobs' not in await browser.text(f"/jobs/{job.id}")


async def test_cancelling_a_finished_job_changes_nothing(browser: Browser, broker: Broker) -> None:
    [id] = await make_dead(broker)
    assert redirects(await browser.post(f"/jobs/{id}/cancel"), "/jobs/", "not-cancelled")
    assert (await fetch(broker, id)).state is JobState.DEAD


async def test_requeuing_a_dead_job_makes_it_pending(browser: Browser, broker: Broker) -> None:
    [id] = await make_dead(broker)
    assert redirects(await browser.post(f"/jobs/{id}/requeue"), f"/jobs/{id}?", "requeued")
    assert (await fetch(broker, id)).state is JobState.PENDING
    assert redirects(await browser.post(f"/jobs/{id}/requeue"), f"/jobs/{id}?", "not-requeued")


async def test_rerunning_a_finished_job_enqueues_a_new_one(browser: Browser, broker: Broker) -> None:
    [id] = await make_dead(broker)
    answer = await browser.post(f"/jobs/{id}/rerun")
    assert redirects(answer, "/jobs/", "rerun")
    new = answer.headers["location"].removeprefix("/jobs/").partition("?")[0]
    assert new != id
    assert (await fetch(broker, new)).state is JobState.PENDING
    assert redirects(await browser.post(f"/jobs/{new}/rerun"), f"/jobs/{new}?", "not-rerun")


async def test_a_queue_is_paused_and_resumed(browser: Browser, broker: Broker) -> None:
    await broker.enqueue("a/b & <c>")
    assert redirects(await browser.post("/queues/pause", {"queue": "a/b & <c>"}), "/?", "paused")
    assert await broker.paused() == {"a/b & <c>"}
    assert redirects(await browser.post("/queues/resume", {"queue": "a/b & <c>"}), "/?", "resumed")
    assert await broker.paused() == set()


async def test_a_schedule_is_triggered_paused_and_resumed(browser: Browser, broker: Broker) -> None:
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report"))
    answer = await browser.post("/schedules/trigger", {"schedule": "nightly"})
    assert redirects(answer, "/jobs/", "triggered")
    assert (await broker.stats("default")).pending == 1
    await browser.post("/schedules/pause", {"schedule": "nightly"})
    assert [schedule.paused for schedule in await broker.schedules()] == [True]
    await browser.post("/schedules/resume", {"schedule": "nightly"})
    assert [schedule.paused for schedule in await broker.schedules()] == [False]
    for verb in ("trigger", "pause", "resume"):
        answer = await browser.post(f"/schedules/{verb}", {"schedule": "unknown"})
        assert redirects(answer, "/schedules", "no-schedule")


@pytest.mark.parametrize("verb", ["requeue", "purge"])
async def test_dead_letters_are_requeued_or_purged_by_error_by_queue_or_all(
    browser: Browser, broker: Broker, verb: str
) -> None:
    await make_dead(broker, "a", "TimeoutError: after 30 s", count=2)
    await make_dead(broker, "b", "TimeoutError: after 31 s")
    await make_dead(broker, "a", "KeyError: 'x'")
    await make_dead(broker, "c", "KeyError: 'x'", count=3)
    fields = {"queue": "", "task": "shop.load", "error": "TimeoutError: after … s"}
    answer = await browser.post(f"/dead/{verb}", fields)
    assert redirects(answer, "/dead", "dead-requeued" if verb == "requeue" else "dead-purged")
    assert "n=3" in answer.headers["location"]
    assert len(await broker.dead_jobs()) == 4
    await browser.post(f"/dead/{verb}", {"queue": "a"})
    assert {job.queue for job in await broker.dead_jobs()} == {"c"}
    await browser.post(f"/dead/{verb}", {"all": "yes"})
    assert await broker.dead_jobs() == []
    pending = sum(stats.pending for stats in (await broker.all_stats()).values())
    assert pending == (7 if verb == "requeue" else 0)


@pytest.mark.parametrize("verb", ["requeue", "purge"])
async def test_a_group_action_on_one_queue_leaves_other_queues_alone(
    browser: Browser, broker: Broker, verb: str
) -> None:
    await make_dead(broker, "a", "KeyError: 'x'")
    await make_dead(broker, "b", "KeyError: 'y'")
    await browser.post(f"/dead/{verb}", {"queue": "a", "task": "shop.load", "error": "KeyError: …"})
    assert {job.queue for job in await broker.dead_jobs()} == {"b"}


@pytest.mark.parametrize("path", ["/queues/pause", "/schedules/trigger", "/dead/purge", "/dead/requeue"])
async def test_an_action_without_a_target_is_a_400_and_changes_nothing(
    browser: Browser, broker: Broker, path: str
) -> None:
    await make_dead(broker)
    answer = await browser.post(path)
    assert answer.status_code == 400
    assert "Nothing was changed" in answer.text
    assert len(await broker.dead_jobs()) == 1
    assert await broker.paused() == set()


async def test_a_long_bulk_operation_continues_after_the_response_and_shows_its_progress(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "RESPONSE_WAIT", 0.01)
    await make_dead(broker, "a", count=3)
    proceed = asyncio.Event()
    purge = broker.purge_dead

    async def slow(queue: str | None = None, *, on_progress: Any = None) -> int:
        on_progress(1)
        await proceed.wait()
        return await purge(queue)

    monkeypatch.setattr(broker, "purge_dead", slow)
    answer = await browser.post("/dead/purge", {"queue": "a"})
    assert redirects(answer, "/operations", "in-progress")
    text = await browser.text("/dead")
    assert "Delete dead jobs of queue a:" in text
    assert "1 of 3 jobs" in text
    assert len(rows(text)) == 3
    proceed.set()
    async with asyncio.timeout(BOUND):
        while "1 of 3 jobs" in await browser.text("/dead"):
            await SYSTEM.wait(asyncio.Event(), 0.01)
    assert await broker.dead_jobs() == []


async def test_a_failed_bulk_operation_is_shown_and_logged(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: Any, **__: Any) -> int:
        raise EngineUnavailable("the disk is gone")

    monkeypatch.setattr(broker, "purge_dead", fails)
    await make_dead(broker)
    answer = await browser.post("/dead/purge", {"all": "yes"})
    assert redirects(answer, "/dead", "failed")
    assert "the disk is gone" in await browser.text("/dead")
    assert "the disk is gone" in caplog.text


async def test_bulk_operations_beyond_the_limit_are_refused(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "RESPONSE_WAIT", 0.001)
    never = asyncio.Event()

    async def slow(*_: Any, **__: Any) -> int:
        await never.wait()
        return 0

    monkeypatch.setattr(broker, "purge_dead", slow)
    for _ in range(bulk.MAX_RUNNING):
        assert redirects(await browser.post("/dead/purge", {"all": "yes"}), "/operations", "in-progress")
    assert redirects(await browser.post("/dead/purge", {"all": "yes"}), "/operations", "busy")
    never.set()


async def test_each_action_writes_a_line_to_the_audit_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dayjob.audit")
    browser = browse(broker, token=TOKEN)
    await browser.log_in()
    [id] = await make_dead(broker)
    await browser.post(f"/jobs/{id}/requeue")
    await browser.post("/queues/pause", {"queue": "two\nlines"})
    await browser.client.post("/api/queues/resume", json={"queue": "two\nlines"}, headers=BEARER)
    lines = [record.getMessage() for record in caplog.records if record.name == "dayjob.audit"]
    assert lines == [
        "login by token from 127.0.0.1",
        f"job.requeue by token from 127.0.0.1 on '{id}': requeued",
        "queue.pause by token from 127.0.0.1 on 'two\\nlines': paused",
        "queue.resume by token from 127.0.0.1 on 'two\\nlines': resumed",
    ]
    fields = vars(caplog.records[-1])
    assert (fields["action"], fields["user"], fields["target"]) == ("queue.resume", "token", "two\nlines")


async def test_an_unavailable_store_is_a_503_page(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise EngineUnavailable("the disk is gone")

    monkeypatch.setattr(broker, "all_stats", fails)
    monkeypatch.setattr(broker, "pause", fails)
    answer = await browser.get("/jobs")
    assert answer.status_code == 503
    assert "the disk is gone" in answer.text
    await browser.get("/schedules")
    assert (await browser.post("/queues/pause", {"queue": "a"})).status_code == 503
    assert "queue.pause by local from 127.0.0.1 on 'a': failed" in caplog.text


async def test_a_limit_is_stored_changed_and_removed(browser: Browser, broker: Broker) -> None:
    await browser.get("/limits")
    answer = await browser.post("/limits/set", {"limit": "api", "running": "3", "rate": "", "per": ""})
    assert redirects(answer, "/limits", "limit-set")
    rate = {"limit": "api", "running": "", "rate": "10", "per": "0.5", "burst": "4"}
    await browser.post("/limits/set", rate)
    [stored] = await broker.limits()
    assert stored.settings == Limit(rate=10, per=0.5, burst=4).settings()
    for fields, text in (
        ({"running": "many"}, "running=&#39;many&#39; is not a number"),
        ({"running": "0"}, "pass a whole number, 1 or more"),
        ({}, "limits nothing: pass running, rate, or both"),
    ):
        answer = await browser.post("/limits/set", {"limit": "api"} | fields)
        assert answer.status_code == 400
        assert text in answer.text
    assert [each.settings for each in await broker.limits()] == [stored.settings]
    assert redirects(await browser.post("/limits/remove", {"limit": "api"}), "/limits", "limit-removed")
    assert redirects(await browser.post("/limits/remove", {"limit": "api"}), "/limits", "no-limit")
