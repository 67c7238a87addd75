"""Edit and run again: the form of a finished job, its checks, and the new job."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dayjob import App, Broker, BrokerConfig, Job, JobState
from dayjob.dashboard import dashboard
from dayjob.inspect.redaction import DEPTH
from tests.dashboard.browsing import BEARER, TOKEN, Browser, browse, make_running
from tests.dashboard.test_actions import redirects

PAYLOAD = b'{"to": "ada", "password": "hunter2", "deep": {"token": "t-1", "n": 1}}'


async def make_dead(broker: Broker, payload: bytes = PAYLOAD, task: str = "shop.send") -> str:
    await broker.enqueue(
        "email", payload, task=task, priority=50, max_attempts=4, tenant="acme", headers={"trace": "t-7"}
    )
    [job] = await broker.claim("email")
    await broker.dead_letter(job, "ValueError: bad")
    return job.id


async def rerun(browser: Browser, broker: Broker, id: str, **fields: str) -> Job:
    answer = await browser.post(f"/jobs/{id}/edit", fields)
    assert redirects(answer, "/jobs/", "rerun")
    job = await broker.get(answer.headers["location"].removeprefix("/jobs/").partition("?")[0])
    assert job is not None
    assert job.id != id
    return job


async def test_the_form_has_the_arguments_and_options_without_hidden_values(
    browser: Browser, broker: Broker
) -> None:
    id = await make_dead(broker)
    assert f'href="/jobs/{id}/edit"' in await browser.text(f"/jobs/{id}")
    text = await browser.text(f"/jobs/{id}/edit")
    assert "&#34;to&#34;: &#34;ada&#34;" in text
    assert text.count("&#34;[redacted]&#34;") == 2
    assert "hunter2" not in text
    assert 'name="queue" value="email"' in text
    assert 'value="50"' in text


async def test_a_new_job_has_the_edited_arguments_and_options(browser: Browser, broker: Broker) -> None:
    id = await make_dead(broker)
    edited = '{"to": "bob",\r\n "password": "[redacted]", "deep": {"token": "t-2", "n": 2}}'
    job = await rerun(browser, broker, id, arguments=edited, queue="slow", priority="7", delay="90")
    assert json.loads(job.payload) == {"to": "bob", "password": "hunter2", "deep": {"token": "t-2", "n": 2}}
    assert (job.queue, job.priority, job.task, job.state) == ("slow", 7, "shop.send", JobState.SCHEDULED)
    assert (job.tenant, job.headers, job.max_attempts) == ("acme", {"trace": "t-7"}, 4)
    assert 80 < (job.run_us - job.enqueued_us) / 1e6 < 100
    old = await broker.get(id)
    assert old is not None
    assert old.state is JobState.DEAD


async def test_unchanged_arguments_are_the_same_bytes(browser: Browser, broker: Broker) -> None:
    payload = b'{ "a":1.0,   "b" : "\\u00e4" }'
    id = await make_dead(broker, payload)
    job = await rerun(browser, broker, id, arguments='{"a": 1.0,\r\n"b": "ä"}')
    assert job.payload == payload
    job = await rerun(browser, broker, id, arguments='{"a": 1, "b": "ä"}')
    assert job.payload == '{"a":1,"b":"ä"}'.encode()


async def test_arguments_may_be_nested_as_deeply_as_the_page_shows(browser: Browser, broker: Broker) -> None:
    id = await make_dead(broker, b"{}")
    nested = '{"a": ' + "[" * (DEPTH - 1) + "1" + "]" * (DEPTH - 1) + "}"
    job = await rerun(browser, broker, id, arguments=nested)
    assert job.payload == nested.replace(" ", "").encode()
    answer = await browser.post(f"/jobs/{id}/edit", {"arguments": nested.replace("1", "[1]")})
    assert (answer.status_code, "nested too deeply" in answer.text) == (422, True)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("arguments", '{"to": ', "This is not JSON"),
        ("arguments", "[1]", "This is no JSON object"),
        ("arguments", '{"a": ' + "[" * 600 + "]" * 600 + "}", "nested too deeply"),
        ("arguments", "[" * 12_000, "This is not JSON"),
        ("arguments", '{"other": "[redacted]"}', "stands for no stored value here"),
        ("arguments", '{"deep": [{"token": "[redacted]"}]}', "stands for no stored value here"),
        ("queue", "", "the queue name is empty"),
        ("queue", "q" * 300, "at most 200 are allowed"),
        ("priority", "high", "is no whole number"),
        ("priority", "-1", "pass a whole number from 0"),
        ("delay", "soon", "is no number of seconds"),
        ("delay", "-1", "is negative"),
        ("delay", "nan", "is not finite"),
    ],
)
async def test_an_invalid_field_has_its_problem_beside_it_and_enqueues_nothing(
    browser: Browser, broker: Broker, field: str, value: str, problem: str
) -> None:
    id = await make_dead(broker)
    answer = await browser.post(f"/jobs/{id}/edit", {"priority": "9", field: value})
    assert answer.status_code == 422
    beside = answer.text.partition(f'id="{field}-problem"')[2].partition("</span>")[0]
    assert problem in beside
    assert f'aria-describedby="{field}-problem"' in answer.text
    assert answer.text.count("-problem") == 2
    if field != "priority":
        assert 'value="9"' in answer.text
    assert len(await broker.jobs()) == 1


async def test_a_hidden_value_in_a_changed_list_is_not_guessed(browser: Browser, broker: Broker) -> None:
    id = await make_dead(broker, b'{"users": [{"id": 1, "token": "a"}, {"id": 2, "token": "b"}]}')
    swapped = '{"users": [{"id": 2, "token": "[redacted]"}, {"id": 1, "token": "[redacted]"}]}'
    assert (await browser.post(f"/jobs/{id}/edit", {"arguments": swapped})).status_code == 422
    longer = '{"users": [{"id": 1, "token": "[redacted]"}, {"id": 3, "token": "c"}]}'
    job = await rerun(browser, broker, id, arguments=longer)
    assert json.loads(job.payload) == {"users": [{"id": 1, "token": "a"}, {"id": 3, "token": "c"}]}


@pytest.mark.parametrize("payload", [b"\xff\xfe", b"plain text", json.dumps({"text": "ä" * 20_000}).encode()])
async def test_a_payload_that_no_form_can_hold_is_kept(
    browser: Browser, broker: Broker, payload: bytes
) -> None:
    id = await make_dead(broker, payload)
    text = await browser.text(f"/jobs/{id}/edit")
    assert "<textarea" not in text
    assert "unchanged" in text
    job = await rerun(browser, broker, id, queue="other", arguments="{}")
    assert (job.payload, job.queue) == (payload, "other")


async def test_only_a_finished_job_is_edited(browser: Browser, broker: Broker) -> None:
    job = await make_running(broker)
    assert "/edit" not in await browser.text(f"/jobs/{job.id}")
    assert (await browser.get(f"/jobs/{job.id}/edit")).status_code == 409
    assert redirects(await browser.post(f"/jobs/{job.id}/edit"), f"/jobs/{job.id}", "not-rerun")
    assert (await browser.get("/jobs/unknown/edit")).status_code == 404
    assert len(await broker.jobs()) == 1


async def test_the_api_returns_the_problems_by_field(broker: Broker) -> None:
    id = await make_dead(broker)
    client = browse(broker, token=TOKEN).client

    async def post(**fields: str) -> Any:
        return await client.post(f"/api/jobs/{id}/edit", json=fields, headers=BEARER)

    answer = await post(priority="x", delay="y")
    assert answer.status_code == 422
    assert set(answer.json()["problems"]) == {"priority", "delay"}
    answer = await post(arguments='{"to": "eve"}')
    assert answer.json()["code"] == "rerun"
    assert await broker.get(answer.json()["rerun"]) is not None


@pytest.fixture
async def app() -> AsyncIterator[App]:
    app = App("memory://", config=BrokerConfig(duties=False))

    @app.task(name="shop.send", queue="email")
    async def send(to: str, copies: int = 1) -> None: ...

    async with app:
        yield app


async def test_arguments_are_checked_against_the_task_of_an_app(app: App) -> None:
    broker = await app.opened()
    id = await make_dead(broker, b'{"to": "ada"}')
    browser = Browser(dashboard(app))
    for wrong, reason in (
        ('{"to": "ada", "copies": "x"}', "copies"),
        ('{"whom": "ada"}', "whom"),
        ("{}", "to"),
    ):
        answer = await browser.post(f"/jobs/{id}/edit", {"arguments": wrong})
        assert answer.status_code == 422
        assert reason in answer.text.partition('id="arguments-problem"')[2].partition("</span>")[0]
    job = await rerun(browser, broker, id, arguments='{"to": "ada", "copies": 2}')
    assert json.loads(job.payload) == {"to": "ada", "copies": 2}


async def test_a_read_only_dashboard_has_no_button_and_enqueues_nothing(broker: Broker) -> None:
    id = await make_dead(broker)
    browser = browse(broker, read_only=True)
    assert f"/jobs/{id}/edit" not in await browser.text(f"/jobs/{id}")
    assert "<button" not in (await browser.text(f"/jobs/{id}/edit")).partition("<main")[2]
    assert (await browser.post(f"/jobs/{id}/edit")).status_code == 403
    assert len(await broker.jobs()) == 1
