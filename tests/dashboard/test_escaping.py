"""Job content never becomes markup, and large content is truncated."""

from __future__ import annotations

import json
import time
import tracemalloc
from urllib.parse import urlencode

import pytest

from dayjob import Broker, NewJob, Recurring
from dayjob.dashboard.rendering import SHOWN_CHARACTERS
from dayjob.dashboard.state import DashboardState
from dayjob.inspect import Redaction
from dayjob.inspect.redaction import DEFAULT, DEPTH
from tests.dashboard.browsing import Browser, browse, links, make_dead, rows

EVIL = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>"


async def test_markup_in_names_is_escaped_on_every_page(browser: Browser, broker: Broker) -> None:
    made = await broker.enqueue(
        EVIL, json.dumps({EVIL: EVIL}).encode(), task=EVIL, tenant=EVIL, headers={EVIL: EVIL}, dedup_key=EVIL
    )
    [job] = await broker.claim(EVIL, worker=EVIL)
    await broker.nack(job, EVIL, delay=0)
    [job] = await broker.claim(EVIL, worker=EVIL)
    await broker.dead_letter(job, EVIL)
    await broker.enqueue(EVIL, task=EVIL, delay=60)
    await broker.pause(EVIL)
    await broker.schedule(Recurring(EVIL, cron="0 3 * * *", task=EVIL, queue=EVIL))
    query = urlencode({"queue": EVIL})
    searching = urlencode(dict.fromkeys(("search", "queue", "task", "tenant", "state", "after"), EVIL))
    for path in (
        "/", f"/?{query}", "/jobs", f"/jobs?{query}", f"/jobs?{searching}", f"/jobs/{made.id}", "/dead",
        f"/dead?{query}", "/dead?by=error", "/schedules", "/workers", f"/jobs/{made.id}?message={EVIL}",
    ):  # fmt: skip
        text = await browser.text(path)
        assert "<script>" not in text, path
        assert "<img src=x" not in text, path
        assert text.count("<script") == 1, path


async def test_links_work_for_names_with_special_characters(browser: Browser, broker: Broker) -> None:
    await broker.enqueue(EVIL, task=EVIL)
    [link] = [link for link in links(await browser.text("/")) if link.startswith("/?queue=")]
    assert "&lt;script&gt;" in await browser.text(link)
    path = next(
        link for link in links(await browser.text("/")) if "state=pending" in link and "queue=" in link
    )
    assert len(rows(await browser.text(path))) == 1


async def test_an_unknown_id_is_escaped(browser: Browser) -> None:
    answer = await browser.get("/jobs/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text


async def test_json_is_served_as_json(browser: Browser, broker: Broker) -> None:
    id = (await broker.enqueue("q", json.dumps(EVIL).encode(), task=EVIL)).id
    answer = await browser.client.get(f"/api/jobs/{id}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["payload"] == EVIL


@pytest.mark.parametrize(
    "payload",
    [
        json.dumps({"items": ["x" * 100] * 10_000}).encode()[: 2**20],
        json.dumps({f"key-{number}": {"password": number} for number in range(25_000)}).encode(),
        b"[" * 2**19 + b"]" * 2**19,
        b"[" * 500 + b"]" * 500,
        b"<b>" * 300_000,
        bytes(range(256)) * 4096,
        b'{"a": 1e999, "b": "\\ud800"}',
    ],
    ids=["list", "keys", "deep", "deeper than shown", "text", "bytes", "odd"],
)
async def test_a_payload_of_a_mebibyte_is_truncated(browser: Browser, broker: Broker, payload: bytes) -> None:
    id = (await broker.enqueue("q", payload[: 2**20])).id
    await browser.text(f"/jobs/{id}")
    begun = time.process_time()
    text = await browser.text(f"/jobs/{id}")
    took = time.process_time() - begun
    assert len(text) < 8 * SHOWN_CHARACTERS
    assert "<b>" not in text
    if payload.startswith((b'{"key', b"<b>")):
        assert f"Showing the first {SHOWN_CHARACTERS:,} characters" in text
        assert f"/api/jobs/{id}" in links(text)
    assert took < 2.0
    assert (await browser.client.get(f"/api/jobs/{id}")).status_code == 200


@pytest.mark.parametrize("redact", [DEFAULT, ""], ids=["redacted", "all shown"])
async def test_only_the_part_of_a_nested_payload_that_is_shown_is_indented(
    broker: Broker, redact: str
) -> None:
    depth = DEPTH - 1
    payload = b"[" * depth + b",".join([b"0"] * 2**18) + b"]" * depth
    id = (await broker.enqueue("q", payload)).id
    browser = browse(broker, redact=redact)
    await browser.text(f"/jobs/{id}")
    tracemalloc.start()
    try:
        await browser.text(f"/jobs/{id}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20  # all of it, indented, has 52 million characters


SECRET = "hunter2"

UNSEARCHABLE = {
    "deep": b'{"password":"hunter2","doc":' + b"[" * 150 + b"]" * 150 + b"}",
    "very deep": b'{"password":"hunter2","doc":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a large integer": b'{"password":"hunter2","n":' + b"9" * 5000 + b"}",
    "a large float": b'{"password":"hunter2","n":1e400}',
    "NaN": b'{"password":"hunter2","n":NaN}',
    "a lone surrogate": b'{"password":"hunter2","s":"\\ud800"}',
    "a trailing comma": b'{"password":"hunter2",}',
    "an escaped name": b'{"p\\u0061ssword":"hunter2",}',
    "two documents": b'{"password":"hunter2"}{"a":1}',
    "a BOM": b'\xef\xbb\xbf{"password":"hunter2"}',
    "UTF-16": '{"password":"hunter2"}'.encode("utf-16"),
    "not UTF-8": b'{"password":"hunter2","s":"\xff"}',
    "MessagePack": b"\x82\xa8password\xa7hunter2\xa1a\x01",
    "text": b"password=hunter2&n=1",
}


@pytest.mark.parametrize("payload", UNSEARCHABLE.values(), ids=UNSEARCHABLE.keys())
async def test_content_that_cant_be_searched_for_names_is_hidden_on_every_page(
    broker: Broker, payload: bytes
) -> None:
    made = await broker.enqueue("q", payload, task="t", dedup_key=f"key-{SECRET}")
    [job] = await broker.claim("q")
    await broker.ack(job, result=payload)
    dead = (await broker.enqueue("q", payload, max_attempts=1)).id
    [job] = await broker.claim("q")
    await broker.dead_letter(job, "ValueError: bad")
    for browser, is_shown in ((browse(broker), False), (browse(broker, redact=""), True)):
        for path in (
            f"/jobs/{made.id}", "/jobs", "/dead", "/dead?by=error", f"/jobs/{made.id}/edit",
            f"/api/jobs/{made.id}", "/api/jobs", "/api/dead", f"/api/jobs/{dead}", f"/jobs?search={SECRET}",
        ):  # fmt: skip
            answer = await browser.get(path)
            assert answer.status_code == 200, path
            assert is_shown or (
                SECRET not in _shown(answer.text) and SECRET.encode().hex() not in answer.text
            )
        assert (len(rows(await browser.text(f"/jobs?search={SECRET}"))) > 0) is is_shown


def _shown(text: str) -> str:
    """Return the text of a page without the search that it repeats."""
    return text.replace(f'value="{SECRET}"', "").replace(f"search={SECRET}", "")


async def test_a_dedup_key_with_a_hidden_value_is_hidden(browser: Browser, broker: Broker) -> None:
    hidden = b'{"user": "ada", "auth": {"token": ["t0ken-x", 5]}}'
    for key, is_hidden in (("login-ada", False), ("login-ada-t0ken-x", True)):
        id = (await broker.enqueue("q", hidden, dedup_key=key)).id
        assert (await browser.client.get(f"/api/jobs/{id}")).json()["dedup_key"] == (
            "[redacted]" if is_hidden else key
        )
        assert (key in await browser.text(f"/jobs/{id}")) is not is_hidden
    assert rows(await browser.text("/jobs?search=t0ken-x")) == []


async def test_a_long_error_is_truncated(browser: Browser, broker: Broker) -> None:
    [id] = await make_dead(broker, error="E" * 100_000)
    text = await browser.text(f"/jobs/{id}")
    assert len(text) < 100_000
    assert len(await browser.text("/dead")) < 10_000
    assert len(await browser.text("/jobs")) < 12_000


async def test_many_headers_and_errors_fit_on_a_page(browser: Browser, broker: Broker) -> None:
    id = (await broker.enqueue("q", headers={f"h{number}": "v" * 50 for number in range(1000)})).id
    assert "h999" in await browser.text(f"/jobs/{id}")


async def test_a_custom_redaction_pattern_hides_matching_names(broker: Broker) -> None:
    browser = browse(broker, redact="iban")
    payload = b'{"IBAN": "DE02", "deep": [{"iban_2": "DE03"}], "password": "shown"}'
    id = (await broker.enqueue("q", payload, headers={"x-iban": "DE04"})).id
    for text in (await browser.text(f"/jobs/{id}"), (await browser.client.get(f"/api/jobs/{id}")).text):
        assert "DE0" not in text
        assert "shown" in text


async def test_a_search_never_matches_redacted_values(browser: Browser, broker: Broker) -> None:
    await broker.enqueue("q", headers={"authorization": "Bearer xyz", "trace": "abc"})
    assert len(rows(await browser.text("/jobs?search=abc"))) == 1
    for guess in ("xyz", "Bearer", "authorization: bearer xyz"):
        assert rows(await browser.text(f"/jobs?{urlencode({'search': guess})}")) == []


def test_a_password_in_the_url_is_not_shown() -> None:
    state = DashboardState("postgresql://ada:lovelace@localhost/x", Redaction(), read_only=False)
    assert state.public_url == "postgresql://ada:***@localhost/x"


async def test_large_payloads_do_not_enlarge_the_lists(browser: Browser, broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q", b"x" * 2**20, task="t") for _ in range(20)])
    for path in ("/jobs", "/jobs?task=other", "/jobs?search=nothing"):
        assert len(await browser.text(path)) < 60_000
