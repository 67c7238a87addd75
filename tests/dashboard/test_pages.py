"""The content of the pages."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode

import msgspec
import pytest
from markupsafe import escape
from msgspec.structs import replace

from dayjob import App, Broker, Limit, NewJob, QueueStats, Recurring
from dayjob.dashboard import pages
from dayjob.dashboard.live_updates import queue_key
from dayjob.dashboard.rendering import MESSAGES
from dayjob.dashboard.tiles import tiles as make_tiles
from dayjob.engines.base import Progress
from dayjob.inspect import Overview, QueueView, search
from tests.dashboard.browsing import Browser, links, make_dead, make_running, rows
from tests.support.registered_workers import MEMBER

PAGES = (
    "/", "/jobs", "/dead", "/dead?by=error", "/tasks", "/schedules", "/limits", "/workers", "/operations"
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_of_an_empty_store_renders(browser: Browser, path: str) -> None:
    text = await browser.text(path)
    assert "<h1>" in text
    assert 'lang="en"' in text
    assert "Skip to content" in text


async def test_the_overview_shows_the_counts_of_each_queue(browser: Browser, broker: Broker) -> None:
    await broker.enqueue_many([NewJob("email")] * 3)
    await broker.enqueue("email", delay=60)
    await make_running(broker)
    await make_dead(broker, count=2)
    [done] = await broker.claim("email")
    await broker.ack(done)
    await broker.pause("import")
    text = await browser.text("/")
    listed = rows(text)
    assert re.match(r"email no worker 0 [\d.]+ \w+ 0 2 0 1 1 0 0\.0", listed[0])
    assert listed[1].startswith("import paused 2 0 0 0 0 0")
    assert listed[2].startswith("long 0 1 0 0 0 0")
    assert "Resume" in listed[1]
    assert text.count("<svg") >= 6
    assert "jobs completed in 60 minutes" in text


async def test_the_overview_of_one_queue_shows_its_charts(browser: Browser, broker: Broker) -> None:
    await broker.enqueue("a & b")
    text = await browser.text(f"/?{urlencode({'queue': 'a & b'})}")
    assert '<span class="name">a &amp; b</span>' in text
    assert "/events/overview?queue=a+%26+b" in links(text) or "queue=a+%26+b" in text


async def test_many_queues_are_paginated(browser: Browser, broker: Broker) -> None:
    await broker.enqueue_many([NewJob(f"queue-{number:03}") for number in range(130)])
    text = await browser.text("/")
    assert len(rows(text)) == 100
    assert "/?from=100" in links(text)
    assert len(rows(await browser.text("/?from=100"))) == 30


async def test_jobs_are_filtered_by_state_queue_task_and_tenant(browser: Browser, broker: Broker) -> None:
    await broker.enqueue("email", task="send", tenant="acme")
    await broker.enqueue("email", task="other", delay=60)
    await make_dead(broker)
    assert len(rows(await browser.text("/jobs"))) == 3
    assert len(rows(await browser.text("/jobs?state=dead"))) == 1
    assert len(rows(await browser.text("/jobs?queue=email"))) == 2
    assert len(rows(await browser.text("/jobs?task=send"))) == 1
    assert len(rows(await browser.text("/jobs?tenant=acme&queue=email&state=pending"))) == 1
    assert "No jobs match" in await browser.text("/jobs?tenant=acme&state=dead")
    assert len(rows(await browser.text("/jobs?state=nonsense"))) == 3


@pytest.mark.parametrize("word", ["TIMEOUTERROR", "shop.load", "acme", "x-trace: 77"])
async def test_jobs_are_found_by_text(browser: Browser, broker: Broker, word: str) -> None:
    await broker.enqueue("email", task="send")
    await make_dead(broker, error="TimeoutError: slow", tenant="acme", headers={"x-trace": "77"})
    assert len(rows(await browser.text(f"/jobs?{urlencode({'search': word})}"))) == 1


async def test_a_job_is_found_by_its_id(browser: Browser, broker: Broker) -> None:
    await broker.enqueue("email")
    id = (await broker.enqueue("email")).id
    assert id in rows(await browser.text(f"/jobs?search={id}"))[0]


async def test_older_jobs_are_on_the_next_page(browser: Browser, broker: Broker) -> None:
    made = await broker.enqueue_many([NewJob("email") for _ in range(120)])
    seen: list[str] = []
    path: str | None = "/jobs?queue=email"
    while path is not None:
        text = await browser.text(path)
        seen += re.findall(r'href="/jobs/([0-9a-f-]{36})"', text)
        path = next((link for link in links(text) if "after=" in link), None)
    assert seen == [each.id for each in reversed(made)]


async def test_a_search_beyond_the_record_limit_offers_to_continue(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "EXAMINED", 20)
    wanted = (await broker.enqueue("email", task="rare")).id
    await broker.enqueue_many([NewJob("email", task="common")] * 50)
    path, pages = "/jobs?task=rare", 0
    while wanted not in (text := await browser.text(path)):
        assert "20 jobs searched, no match. More jobs remain." in text
        assert "Continue search" in text
        path, pages = next(link for link in links(text) if "after=" in link), pages + 1
    assert pages == 2


async def test_a_search_beyond_the_time_budget_offers_to_continue(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "READ_BUDGET", 0.0)
    await make_dead(broker, count=600)
    assert "51 jobs searched, no match" in await browser.text("/jobs?task=rare")
    assert "the latest 100 of 600 dead jobs" in await browser.text("/dead?by=error")


async def test_large_payloads_end_a_search_earlier(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "EXAMINED_BYTES", 100_000)
    await broker.enqueue_many([NewJob("email", b"x" * 10_000, task="t") for _ in range(600)])
    assert "Continue search" in await browser.text("/jobs?task=rare")


async def test_a_job_page_shows_the_timeline_details_and_redacted_payload(
    browser: Browser, broker: Broker
) -> None:
    await broker.enqueue(
        "email", b'{"to": "ada", "password": "hunter2"}', task="shop.send", tenant="acme", max_attempts=2,
        headers={"trace": "t-1", "Authorization": "Bearer xyz"}, dedup_key="welcome:42",
    )  # fmt: skip
    [job] = await broker.claim("email", worker="worker-1")
    await broker.nack(job, "Traceback (most recent call last):\n  line 1\nValueError: first", delay=0)
    [job] = await broker.claim("email", worker="worker-2")
    await broker.nack(job, "KeyError: second")
    text = await browser.text(f"/jobs/{job.id}")
    for part in (
        "Enqueued", "Attempt 1 failed", "by worker-1", "ValueError: first", "Attempt 2 failed", "by worker-2",
        "KeyError: second", "acme", "welcome:42", "t-1", "shop.send",
        "&#34;to&#34;: &#34;ada&#34;",
    ):  # fmt: skip
        assert part in text, part
    assert str(escape((await broker.explain(job.id)).text)) in text
    assert "hunter2" not in text
    assert "xyz" not in text
    assert text.count("[redacted]") == 2
    assert text.index("Attempt 1 failed") < text.index("Attempt 2 failed") < text.index("<strong>Died")


async def test_a_job_page_shows_result_and_duration(browser: Browser, broker: Broker) -> None:
    job = await make_running(broker)
    await broker.ack(job, result=b'{"sent": true}')
    text = await browser.text(f"/jobs/{job.id}")
    assert "&#34;sent&#34;: true" in text
    assert "after running for" in text
    assert "data-live" not in text


async def test_a_running_job_shows_its_progress(browser: Browser, broker: Broker) -> None:
    job = await make_running(broker)
    await broker.record_progress([Progress(job.key, job.claim, 0.4, "resizing")])
    text = await browser.text(f"/jobs/{job.id}")
    assert '<progress id="progress" max="1" value="0.4">' in text
    assert "40% resizing" in text
    assert f'data-live="/jobs/{job.id}/events"' in text
    assert "worker-1" in text


async def test_a_job_page_explains_why_the_job_is_pending(browser: Browser, broker: Broker) -> None:
    id = (await broker.enqueue("email")).id
    await broker.pause("email")
    text = await browser.text(f"/jobs/{id}")
    why = await broker.explain(id)
    assert {"paused", "no_worker_for_queue"} <= {reason.code for reason in why.reasons}
    assert str(escape(why.text)) in text


async def test_a_job_page_names_a_suspect(browser: Browser, broker: Broker) -> None:
    job = await make_running(broker)
    assert "<dt>Suspect</dt>" not in await browser.text(f"/jobs/{job.id}")
    await broker._engine.reclaim(["worker-1"], 1)
    text = await browser.text(f"/jobs/{job.id}")
    assert "<dt>Suspect</dt><dd>yes</dd>" in text
    assert "It is suspect, so no other job starts beside it." in text


@pytest.mark.parametrize("id", ["0197f0f0-0000-7000-8000-000000000000", "nonsense", "%2e%2e"])
async def test_an_unknown_job_is_a_404(browser: Browser, id: str) -> None:
    answer = await browser.get(f"/jobs/{id}")
    assert answer.status_code == 404
    assert "<h1>404</h1>" in answer.text


async def test_dead_letters_come_latest_first_over_all_queues(browser: Browser, broker: Broker) -> None:
    [first] = await make_dead(broker, "a", "OSError: one")
    [second] = await make_dead(broker, "b", "OSError: two")
    [third] = await make_dead(broker, "a", "OSError: three")
    listed = rows(await browser.text("/dead"))
    assert [id for row in listed for id in (first, second, third) if id in row] == [third, second, first]
    assert "OSError: two" in listed[1]
    assert len(rows(await browser.text("/dead?queue=a"))) == 2
    assert "No dead letters" in await browser.text("/dead?queue=unknown")


async def test_pages_of_dead_letters_stay_stable_while_jobs_are_requeued(
    browser: Browser, broker: Broker
) -> None:
    ids = [(await make_dead(broker, "a"))[0] for _ in range(120)][::-1]
    text = await browser.text("/dead")
    assert rows(text)[-1].startswith(f"shop.load {ids[49]}")
    await broker.requeue(ids[49])
    following = next(link for link in links(text) if "after=" in link)
    assert rows(await browser.text(following))[0].startswith(f"shop.load {ids[50]}")


async def test_dead_letters_are_grouped_by_error(browser: Browser, broker: Broker) -> None:
    await make_dead(broker, "a", "TimeoutError: after 30 s")
    await make_dead(broker, "b", "TimeoutError: after 31 s", count=2)
    await make_dead(broker, "a", "KeyError: 'x'")
    listed = rows(await browser.text("/dead?by=error"))
    assert listed[0].startswith("TimeoutError: after … s 3 shop.load a, b")
    assert listed[1].startswith("KeyError: … 1 shop.load a")


async def test_a_dead_job_is_shown_with_its_own_error(browser: Browser, broker: Broker) -> None:
    [id] = await make_dead(broker, "a", "TimeoutError: 'x' after 30.5 s")
    for page in ("/dead", "/jobs?state=dead", f"/jobs/{id}"):
        assert "TimeoutError: 'x' after 30.5 s" in unescape(await browser.text(page))
        assert "TimeoutError: …" not in await browser.text(page)


async def test_schedules_show_their_next_due_times(browser: Browser, broker: Broker) -> None:
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report", timezone="Europe/Berlin"))
    await broker.schedule(Recurring("often", every=timedelta(minutes=5), task="poll", queue="email"))
    await broker.pause_schedule("often")
    text = await browser.text("/schedules")
    listed = rows(text)
    assert listed[0].startswith("nightly 0 3 * * * Europe/Berlin report default –")
    assert len(re.findall(r"\bin \d", listed[0])) == 3
    assert listed[1].startswith("often paused every 300 s poll email – –")
    assert "Resume" in listed[1]


async def test_workers_show_their_slots_and_running_jobs(browser: Browser, broker: Broker) -> None:
    member = await broker.register(MEMBER)
    await broker.enqueue("long", task="shop.long")
    [job] = await broker.claim("long", worker=member.id)
    await broker.beat(member, 1)
    text = await browser.text("/workers")
    assert f"/jobs/{job.id}" in links(text)
    assert f"1 of {member.slots}" in text
    assert member.host in text


async def test_flash_messages_come_from_codes_never_from_the_url(browser: Browser) -> None:
    assert MESSAGES["paused"] in await browser.text("/?message=paused")
    assert "Dead jobs deleted: 1,234." in await browser.text("/dead?message=dead-purged&n=1234")
    for path in ("/?message=<b>hello</b>", "/?message=dead-purged&n=<b>hello</b>"):
        text = await browser.text(path)
        assert "hello" not in text


async def test_an_unknown_page_is_a_404(browser: Browser) -> None:
    answer = await browser.get("/nothing")
    assert answer.status_code == 404
    assert "Page not found" in answer.text
    assert (await browser.client.get("/nothing", headers={"Accept": "*/*"})).json() == {
        "error": "Page not found."
    }


async def test_odd_query_values_find_nothing_and_break_nothing(browser: Browser, broker: Broker) -> None:
    await make_dead(broker)
    for odd in ("%00", "%ff", "%F0%9F%92%A9", "a" * 2000, "..", "%0d%0aX:%20y"):
        for page in ("/", "/jobs", "/dead", "/dead?by=error"):
            await browser.text(f"{page}{'&' if '?' in page else '?'}queue={odd}")
        for name in ("state", "task", "tenant", "search", "after", "from"):
            await browser.text(f"/jobs?state=dead&{name}={odd}")
            await browser.text(f"/dead?{name}={odd}")
            await browser.text(f"/?{name}={odd}")
        assert (await browser.get(f"/jobs/x{odd}")).status_code == 404


async def test_names_with_spaces_around_them_are_found(browser: Browser, broker: Broker) -> None:
    await broker.enqueue(" a ", task=" t ", tenant=" n ")
    query = urlencode({"queue": " a ", "task": " t ", "tenant": " n "})
    assert len(rows(await browser.text(f"/jobs?{query}"))) == 1


async def test_every_link_of_every_page_is_valid(browser: Browser, broker: Broker) -> None:
    await make_dead(broker, count=2)
    await make_running(broker)
    await broker.schedule(Recurring("often", every=300, task="poll"))
    seen: set[str] = set()
    left = ["/"]
    while left:
        path = left.pop()
        if path not in seen and not path.startswith("#"):
            seen.add(path)
            answer = await browser.get(path)
            assert answer.status_code == 200, path
            if "html" in answer.headers["content-type"]:
                left += links(answer.text)
    assert len(seen) > 25


# The overview's tiles.


def tiles(text: str) -> list[tuple[str, str, str]]:
    """Return level, label and value of each tile, in order."""
    found = re.findall(r'<div class="tile (\w*)"><dt><a[^>]*>([^<]*)</a></dt><dd>.*?">([^<]*)<', text)
    return [(level, label, value) for level, label, value in found]


async def test_tiles_are_in_order_of_importance_and_without_colour_while_all_is_well(
    browser: Browser, broker: Broker
) -> None:
    await broker.register(MEMBER)
    await broker.enqueue("q")
    found = tiles(await browser.text("/"))
    assert [label for _, label, _ in found] == [
        "Dead", "Oldest wait", "Stopped queues", "Running", "Pending", "Scheduled", "Completed", "Workers",
    ]  # fmt: skip
    assert {level for level, _, _ in found} == {""}


async def test_tiles_are_coloured_where_something_is_wrong(browser: Browser, broker: Broker) -> None:
    await make_dead(broker)
    await broker.enqueue("unserved")
    await broker.pause("quiet")
    text = await browser.text("/")
    levels = {label: (level, value) for level, label, value in tiles(text)}
    assert levels["Dead"] == ("bad", "1")
    assert levels["Stopped queues"] == ("bad", "2")
    assert "1 paused, 1 without worker" in text
    assert levels["Workers"] == ("bad", "0")
    assert levels["Running"][0] == levels["Pending"][0] == ""
    await broker.register(replace(MEMBER, queues=()))
    levels = {label: (level, value) for level, label, value in tiles(await browser.text("/"))}
    assert levels["Stopped queues"] == ("warn", "1")


@pytest.mark.parametrize(("seconds", "level"), [(59, ""), (60, "warn"), (599, "warn"), (600, "bad")])
def test_a_long_wait_is_coloured(seconds: float, level: str) -> None:
    view = QueueView("email", False, QueueStats(pending=1), 0.0, seconds)
    overview = Overview(0, [view], view.stats, 0.0, 1, 1, 0, 0, 0.001)
    tile = next(tile for tile in make_tiles(overview, None) if tile.key == "wait")
    assert (tile.level, tile.note) == (level, "email")


# Lists.


async def test_lists_show_the_arguments_shortened_and_redacted(browser: Browser, broker: Broker) -> None:
    payload = msgspec.json.encode({"to": "ada", "password": "hunter2", "text": "x" * 500, "n": [1, 2]})
    await broker.enqueue("email", payload, task="shop.send")
    [job] = await broker.claim("email", worker="w-1")
    for path in ("/jobs", "/jobs?worker=w-1"):
        [row] = rows(await browser.text(path))
        assert 'to="ada", password="[redacted]", text="xxx' in row
        assert "x" * 60 not in row
        assert "hunter2" not in row
    await broker.dead_letter(job, "ValueError: bad")
    assert 'to="ada"' in rows(await browser.text("/dead"))[0]


async def test_jobs_of_schedules_are_hidden_on_request(browser: Browser, broker: Broker) -> None:
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report"))
    await broker.trigger("nightly")
    await broker.enqueue("default", task="by hand")
    assert len(rows(await browser.text("/jobs"))) == 2
    text = await browser.text("/jobs?recurring=no")
    assert [row.split()[0] for row in rows(text)] == ["by"]
    assert 'value="no" checked' in text
    assert "/jobs?state=dead&recurring=no" in links(text)
    assert [row.split()[0] for row in rows(await browser.text("/jobs?recurring=yes"))] == ["report"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"arg": "to=ada"}, 1), ({"arg": "user.id = 7"}, 1), ({"arg": "to=bob"}, 0),
        ({"arg": "password=hunter2"}, 0), ({"search": "ada"}, 1), ({"search": "hunter2"}, 0),
    ],
)  # fmt: skip
async def test_jobs_are_found_by_the_value_of_an_argument(
    browser: Browser, broker: Broker, query: dict[str, str], found: int
) -> None:
    await broker.enqueue("email", b'{"to": "ada", "user": {"id": 7}, "password": "hunter2"}', task="send")
    await broker.enqueue("email", b'{"to": "eve"}', task="send")
    assert len(rows(await browser.text(f"/jobs?{urlencode(query)}"))) == found


async def test_an_argument_without_a_value_is_a_problem_beside_its_field(
    browser: Browser, broker: Broker
) -> None:
    await broker.enqueue("email")
    text = await browser.text("/jobs?arg=nonsense")
    assert "write name=value" in text
    assert 'value="nonsense"' in text
    assert "/jobs/confirm" not in text
    assert (await browser.client.get("/api/jobs?arg=nonsense")).status_code == 400


async def test_a_worker_links_to_its_jobs(browser: Browser, broker: Broker) -> None:
    member = await broker.register(MEMBER)
    await broker.enqueue_many([NewJob("long", b'{"n": 7}', task="shop.long")] * 2)
    [job] = await broker.claim("long", worker=member.id)
    text = await browser.text("/workers")
    assert "n=7" in text
    assert f"/jobs?worker={member.id}" in links(text)
    [row] = rows(await browser.text(f"/jobs?worker={member.id}"))
    assert job.id in row
    await broker.ack(job)
    assert len(rows(await browser.text(f"/jobs?worker={member.id}"))) == 1
    assert f"/jobs?worker={member.id}" in links(await browser.text(f"/jobs/{job.id}"))


async def test_pages_show_no_internal_prefixes(browser: Browser, broker: Broker) -> None:
    app = App("memory://")

    @app.task(name="shop.send", dedup=lambda to="bob": f"welcome:{to}", cron="0 3 * * *")
    async def send(to: str = "ada") -> None: ...

    made = await broker.enqueue_job(send.bind("ada").new_job())
    await broker.declare("app", app.recurring())
    fired = await broker.trigger("shop.send")
    for id in (made.id, fired.id):
        text = await browser.text(f"/jobs/{id}")
        assert "dayjob-" not in text.partition("<main")[2]
        assert "9:shop.send:" not in text
    assert "<dt>Schedule</dt>" in await browser.text(f"/jobs/{fired.id}")
    assert "<dd>welcome:ada</dd>" in await browser.text(f"/jobs/{made.id}")


ODD = (
    b"", b"null", b"7", b'"text"', b"[1, 2]", b"[" * 400 + b"]" * 400, b"\xff\xfe", b'{"a": "\\ud800"}',
    b'{"a": 1e999}', b'{"a": 123456789012345678901234567890}', b'{"": ""}', b"{" * 10_000,
    b'"' + b"x" * 10**6 + b'"',
)  # fmt: skip


async def test_odd_records_break_no_page(browser: Browser, broker: Broker) -> None:
    for payload in ODD:
        for task in ("", "t\n\t\u202e"):
            await broker.enqueue("odd", payload, task=task, headers={"h\n": "\u202e"})
    for number, job in enumerate(await broker.claim("odd", limit=100)):
        await broker.record_progress([Progress(job.key, job.claim, 1.0, "\n" * 50)])
        if number % 3 == 0:
            await broker.ack(job, result=job.payload)
        elif number % 3 == 1:
            await broker.dead_letter(job, "\n")
    for path in (
        "/",
        "/jobs",
        "/jobs?search=x",
        "/jobs?arg=a%3D1",
        "/dead",
        "/dead?by=error",
        "/tasks",
        "/workers",
    ):
        await browser.text(path)
    for job in await broker.jobs(limit=100):
        await browser.text(f"/jobs/{job.id}")
        if job.state.finished:
            await browser.text(f"/jobs/{job.id}/edit")
            assert (await browser.post(f"/jobs/{job.id}/edit", {"arguments": "{}"})).status_code in (303, 422)


# Tasks.


async def test_tasks_show_their_failures_and_times(browser: Browser, broker: Broker) -> None:
    await make_dead(broker, count=3)
    job = await make_running(broker)
    await broker.ack(job)
    text = await browser.text("/tasks")
    assert "From all 4 finished jobs" in text
    listed = rows(text)
    assert listed[0].startswith("shop.load 3 (100%) 3 3")
    assert re.match(r"shop.long 0 1 0 [\d.,]+ m?s / [\d.,]+ m?s [\d.,]+ m?s / [\d.,]+ m?s long", listed[1])
    assert "/jobs?task=shop.load" in links(text)
    assert len(rows(await browser.text("/tasks?queue=long"))) == 1
    assert "No finished jobs are kept" in await browser.text("/tasks?queue=unknown")
    found = await browser.api("tasks")
    assert (found["jobs"], found["complete"], found["tasks"][0]["failures"]) == (4, True, 3)


async def test_limits_show_their_bounds_and_their_use(browser: Browser, broker: Broker) -> None:
    await broker.set_limit("api", Limit(running=1))
    await broker.set_limit("queue:mail", Limit(rate=100, per=60, burst=10))
    for _ in range(3):
        await broker.enqueue("q", limits=["api"])
    await broker.claim("q", limit=5, worker="w")
    text = await browser.text("/limits")
    for shown in ("api", "1 at once", "queue:mail", "100 per 60 s, 10 together"):
        assert shown in text
    key = queue_key("api")
    assert f'data-value="{key}-running">1<' in text
    assert f'data-value="{key}-limited">2<' in text
