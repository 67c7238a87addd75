"""The JSON API has the fields of the command line's ``--json``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dayjob import Broker, BrokerConfig, NewJob, Recurring
from dayjob.cli import main
from dayjob.dashboard import dashboard
from tests.dashboard.browsing import BEARER, TOKEN, Browser, browse, make_dead, make_running
from tests.support.registered_workers import MEMBER


async def test_jobs_are_listed_page_by_page(browser: Browser, broker: Broker) -> None:
    made = [each.id for each in await broker.enqueue_many([NewJob("email", b"[1]")] * 3)]
    first = await browser.api("jobs?limit=2")
    assert [job["id"] for job in first["jobs"]] == [made[2], made[1]]
    assert first["jobs"][0]["payload"] == [1]
    following = await browser.api(f"jobs?limit=2&after={first['after']}")
    assert ([job["id"] for job in following["jobs"]], following["after"]) == ([made[0]], None)
    oldest = await browser.api("jobs?oldest_first=1&limit=1")
    assert oldest["jobs"][0]["id"] == made[0]
    for odd in ("0", "-1", "x", "9999999999999", "²"):
        assert len((await browser.api(f"jobs?limit={odd}"))["jobs"]) >= 1


async def test_a_job_comes_with_its_explanation(browser: Browser, broker: Broker) -> None:
    id = (await broker.enqueue("email", tenant="acme")).id
    job = await browser.api(f"jobs/{id}")
    assert (job["id"], job["tenant"], job["state"]) == (id, "acme", "pending")
    assert job["explanation"]["reasons"][0]["code"] == "no_worker_for_queue"
    answer = await browser.client.get("/api/jobs/unknown")
    assert answer.status_code == 404
    assert "error" in answer.json()


async def test_dead_letters_are_listed_page_by_page_and_grouped(browser: Browser, broker: Broker) -> None:
    ids = [(await make_dead(broker, "a", f"KeyError: {number}"))[0] for number in range(3)]
    first = await browser.api("dead?limit=2")
    assert [job["id"] for job in first["jobs"]] == [ids[2], ids[1]]
    following = await browser.api(f"dead?limit=2&after={first['after']}")
    assert ([job["id"] for job in following["jobs"]], following["after"]) == ([ids[0]], None)
    groups = await browser.api("dead/groups?queue=a")
    assert [(group["error"], group["count"]) for group in groups["groups"]] == [("KeyError: …", 3)]
    assert (await browser.api("dead?after=nonsense"))["jobs"]


async def test_the_chart_has_sixty_minutes(browser: Browser, broker: Broker) -> None:
    await broker.enqueue("email")
    chart = await browser.api("chart?queue=email")
    assert (chart["queue"], len(chart["minutes"])) == ("email", 60)
    assert chart["minutes"][-1]["pending"] == 1


async def test_health_and_metrics_are_served(browser: Browser, broker: Broker) -> None:
    await broker.enqueue("email")
    answer = await browser.client.get("/healthz")
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    pytest.importorskip("prometheus_client")
    answer = await browser.client.get("/metrics")
    assert 'dayjob_jobs{queue="email",state="pending"} 1.0' in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


async def test_actions_of_the_api_respond_in_json(broker: Broker) -> None:
    client = browse(broker, token=TOKEN).client
    await make_dead(broker, "a", count=2)
    running = await make_running(broker)
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report"))

    async def post(path: str, **fields: str) -> Any:
        return (await client.post(f"/api/{path}", json=fields, headers=BEARER)).json()

    reply = await post(f"jobs/{running.id}/cancel")
    assert reply == {"ok": True, "code": "cancel-requested", "id": running.id, "outcome": "requested"}
    reply = await post("queues/pause", queue="a")
    assert reply == {"ok": True, "code": "paused", "queue": "a", "paused": True}
    reply = await post("dead/requeue", queue="a")
    assert reply.pop("operation")
    assert reply == {
        "ok": True, "code": "dead-requeued", "jobs": 2, "total": 2, "ended": True, "problem": None,
    }  # fmt: skip
    reply = await post("schedules/trigger", schedule="nightly")
    assert (await broker.get(reply["job"])) is not None
    reply = await post("schedules/trigger", schedule="unknown")
    assert reply == {"ok": False, "code": "no-schedule", "schedule": "unknown", "job": None}
    assert "error" in await post("dead/purge")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["queues"], "queues"),
        (["jobs"], "jobs"),
        (["jobs", "--state", "dead", "-n", "1"], "jobs?state=dead&limit=1"),
        (["show", "{id}"], "jobs/{id}"),
        (["dead"], "dead"),
        (["dead", "--group"], "dead/groups"),
        (["schedules"], "schedules"),
        (["workers"], "workers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
async def test_the_fields_are_those_of_the_command_line(
    tmp_path: Path, arguments: list[str], path: str
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        [id] = await make_dead(broker, "a")
        await make_dead(broker, "b")
        await broker.enqueue("c", delay=3600)
        await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report"))
        await broker.register(MEMBER)
        named = [argument.replace("{id}", id) for argument in arguments]
        result = await asyncio.to_thread(CliRunner().invoke, main, [named[0], url, *named[1:], "--json"])
        assert result.exit_code == 0, result.output
        served = await Browser(dashboard(broker)).api(path.replace("{id}", id))
        printed = json.loads(result.stdout)
        if isinstance(served, dict):  # the command line's lists of dead jobs have no cursor
            served = {name: value for name, value in served.items() if name in printed}
        assert _without_times(served) == _without_times(printed)


def _without_times(value: Any) -> Any:
    """Leave out the fields that differ between two moments."""
    if isinstance(value, dict):
        return {name: _without_times(each) for name, each in value.items() if name != "waiting_seconds"}
    if isinstance(value, list):
        return [_without_times(each) for each in value]
    return value
