"""Bulk actions on all jobs that a filter selects: count, confirmation, progress, stop."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import urlencode

import pytest

from dayjob import Broker, JobState, NewJob
from dayjob.dashboard import bulk, pages
from tests.dashboard.browsing import BEARER, TOKEN, Browser, browse, links, make_dead, make_running, rows
from tests.dashboard.test_actions import redirects
from tests.support.bound import BOUND


async def make_pending(broker: Broker, count: int = 120) -> None:
    """Enqueue more jobs than a page shows, for two users."""
    await broker.enqueue_many(
        [NewJob("email", b'{"user": %d}' % (number % 2), task="shop.send") for number in range(count)]
    )


async def test_the_list_offers_the_actions_that_its_jobs_allow(browser: Browser, broker: Broker) -> None:
    await make_dead(broker)
    await broker.enqueue("email")
    [done] = await broker.claim("email")
    await broker.ack(done)
    await broker.enqueue("email", delay=60)

    async def offered(query: str) -> list[str]:
        found = [link for link in links(await browser.text(f"/jobs?{query}")) if "/jobs/confirm" in link]
        return sorted(link.partition("action=")[2] for link in found)

    assert await offered("") == ["cancel", "purge", "requeue"]
    assert await offered("state=dead") == ["purge", "requeue"]
    assert await offered("state=scheduled") == ["cancel"]
    assert await offered("state=done") == []
    assert "/jobs/confirm" not in await browse(broker, read_only=True).text("/jobs")


async def test_an_action_is_confirmed_with_the_number_of_all_matching_jobs(
    browser: Browser, broker: Broker
) -> None:
    await make_pending(broker)
    query = urlencode({"arg": "user=1", "task": "shop.send"})
    listed = await browser.text(f"/jobs?{query}")
    assert len(rows(listed)) == 50
    link = next(link for link in links(listed) if "action=cancel" in link)
    text = await browser.text(link)
    assert "Cancel 60 jobs?" in text
    assert "task shop.send, argument user=1" in text
    assert "Cancel 60 jobs" in text.partition("<button")[2]
    assert (await broker.stats("email")).pending == 120


async def test_a_count_beyond_the_time_budget_is_a_lower_bound(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "READ_BUDGET", 0.0)
    await make_pending(broker, 300)
    text = await browser.text("/jobs/confirm?action=cancel&arg=user%3D1")
    assert "Cancel all matching jobs?" in text
    assert "At least 50." in text
    assert "Cancel 300 jobs?" in await browser.text("/jobs/confirm?action=cancel&queue=email")


async def test_all_matching_jobs_are_cancelled_and_no_others(browser: Browser, broker: Broker) -> None:
    await make_pending(broker)
    running = await make_running(broker, "long")
    answer = await browser.post("/jobs/cancel", {"task": "shop.send", "arg": "user=1"})
    assert redirects(answer, "/jobs?", "jobs-cancel")
    assert "n=60" in answer.headers["location"]
    stats = await broker.stats("email")
    assert (stats.pending, stats.cancelled) == (60, 60)
    found = await broker.get(running.id)
    assert found is not None
    assert not found.cancel_requested
    await browser.post("/jobs/cancel", {"state": "running"})
    found = await broker.get(running.id)
    assert found is not None
    assert found.cancel_requested
    assert (await broker.stats("email")).pending == 60


@pytest.mark.parametrize(("verb", "pending"), [("requeue", 70), ("purge", 0)])
async def test_all_matching_dead_jobs_are_requeued_or_deleted(
    browser: Browser, broker: Broker, verb: str, pending: int
) -> None:
    await make_dead(broker, "a", "TimeoutError: slow", count=70, tenant="acme")
    await make_dead(broker, "a", "KeyError: x", count=2, tenant="acme")
    await make_dead(broker, "a", "TimeoutError: slow", count=3)
    answer = await browser.post(f"/jobs/{verb}", {"search": "timeouterror", "tenant": "acme"})
    assert redirects(answer, "/jobs?", f"jobs-{verb}")
    stats = await broker.stats("a")
    assert (stats.pending, stats.dead) == (pending, 5)
    assert len(await broker.jobs(limit=1000)) == pending + 5


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"state": "nonsense"}, {"arg": "nonsense"}, {"recurring": "maybe"},
        {"state": "nonsense", "all": "yes"},
    ],
)  # fmt: skip
async def test_an_invalid_filter_changes_nothing(
    browser: Browser, broker: Broker, fields: dict[str, str]
) -> None:
    await make_pending(broker, 3)
    answer = await browser.post("/jobs/cancel", fields)
    assert answer.status_code == 400
    assert "Nothing was changed" in answer.text
    assert (await broker.stats("email")).pending == 3
    if fields:
        assert (
            await browser.get(f"/jobs/confirm?{urlencode({'action': 'cancel', **fields})}")
        ).status_code == 400
    assert (await browser.get("/jobs/confirm?action=nonsense")).status_code == 400


async def test_a_state_that_an_action_does_not_change_selects_nothing(
    browser: Browser, broker: Broker
) -> None:
    await make_dead(broker, "a")
    assert "Cancel 0 jobs?" in await browser.text("/jobs/confirm?action=cancel&state=dead")
    await browser.post("/jobs/cancel", {"state": "dead"})
    await browser.post("/jobs/purge", {"state": "done"})
    assert len(await broker.dead_jobs()) == 1


async def test_an_operation_shows_n_of_m_and_is_stopped(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dayjob.audit")
    monkeypatch.setattr(bulk, "RESPONSE_WAIT", 0.001)
    await make_pending(broker, 250)
    cancel_many = broker.cancel_many
    in_second, never = asyncio.Event(), asyncio.Event()

    async def only_once(ids: Any) -> Any:
        if (await broker.stats("email")).cancelled:
            in_second.set()
            await never.wait()
        return await cancel_many(ids)

    monkeypatch.setattr(broker, "cancel_many", only_once)
    answer = await browser.post("/jobs/cancel", {"queue": "email"})
    assert redirects(answer, "/operations", "in-progress")
    async with asyncio.timeout(BOUND):
        await in_second.wait()
    text = await browser.text("/operations")
    assert "Cancel all jobs: queue email" in text
    assert "100 of 250 jobs" in text
    assert 'max="1" value="0.4"' in text
    assert "100 of 250 jobs" in await browser.text("/jobs")
    [operation] = await browser.api("operations")
    assert (operation["jobs"], operation["total"], operation["ended"]) == (100, 250, False)
    answer = await browser.post("/operations/stop", {"operation": operation["operation"]})
    assert redirects(answer, "/operations", "stopped")
    assert "stopped after 100 jobs: stopped by a user" in await browser.text("/operations")
    assert (await broker.stats("email")).pending == 150
    answer = await browser.post("/operations/stop", {"operation": operation["operation"]})
    assert redirects(answer, "/operations", "not-stopped")
    lines = [record.getMessage() for record in caplog.records if record.name == "dayjob.audit"]
    assert lines[0] == "jobs.cancel by local from 127.0.0.1 on 'email': in-progress"
    assert lines[1].startswith(
        "jobs.cancel.ended by local from 127.0.0.1 on 'Cancel all jobs: queue email': failed"
    )


async def test_a_bulk_action_of_the_api_needs_a_filter_and_returns_its_operation(broker: Broker) -> None:
    await make_pending(broker, 4)
    client = browse(broker, token=TOKEN).client
    assert (await client.post("/api/jobs/cancel", headers=BEARER)).status_code == 400
    reply = (await client.post("/api/jobs/cancel", json={"arg": "user=0"}, headers=BEARER)).json()
    assert (reply["ok"], reply["jobs"], reply["total"], reply["ended"]) == (True, 2, 2, True)
    await client.post("/api/jobs/cancel", json={"all": "yes"}, headers=BEARER)
    assert {job.state for job in await broker.jobs()} == {JobState.CANCELLED}
