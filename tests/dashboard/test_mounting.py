"""Dashboards mounted or served alone, of an app, a broker or a URL."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Message, Receive, Scope, Send

from dayjob import App, Broker, BrokerConfig
from dayjob.dashboard import Dashboard, dashboard
from tests.dashboard.browsing import TOKEN, Browser, links, make_dead


def mounted(made: Dashboard, prefix: str) -> Browser:
    inner = Starlette(routes=[Mount(prefix, made)])
    return Browser(inner, prefix=prefix, dashboard=made)


@pytest.mark.parametrize("prefix", ["/jobs", "/admin/jobs", "/a b/ü"])
async def test_under_a_prefix_every_link_and_form_stays_under_it(broker: Broker, prefix: str) -> None:
    browser = mounted(dashboard(broker), prefix)
    [id] = await make_dead(broker)
    await broker.enqueue("email")
    for path in ("/", "/jobs", "/dead", "/dead?by=error", "/schedules", "/workers", f"/jobs/{id}"):
        text = await browser.text(path)
        targets = links(text) + re.findall(r'(?:action|src|data-live)="([^"]*)"', text)
        assert len(targets) > 8
        assert all(target.startswith((quote(prefix) + "/", "#")) for target in targets), (path, targets)
    answer = await browser.post(f"/jobs/{id}/requeue")
    assert answer.headers["location"].startswith(f"{quote(prefix)}/jobs/{id}?message=requeued")
    assert (await browser.get("/static/dashboard.css")).status_code == 200


async def test_under_a_prefix_the_login_works_and_its_cookie_is_for_that_prefix(broker: Broker) -> None:
    browser = mounted(dashboard(broker, token=TOKEN), "/admin")
    answer = await browser.get("/jobs?state=dead")
    assert answer.headers["location"] == "/admin/login?next=%2Fjobs%3Fstate%3Ddead"
    await browser.get("/login")
    answer = await browser.post("/login", {"token": TOKEN, "next": "/jobs?state=dead"})
    assert answer.headers["location"] == "/admin/jobs?state=dead"
    assert "path=/admin;" in answer.headers["set-cookie"].lower()
    assert (await browser.get("/jobs")).status_code == 200


async def test_two_dashboards_on_one_host_use_different_cookies(broker: Broker) -> None:
    names = set()
    for port in (8787, 8788):
        answer = await Browser(dashboard(broker, token=TOKEN), f"http://127.0.0.1:{port}").get("/login")
        names.add(answer.headers["set-cookie"].partition("=")[0])
    assert len(names) == 2


async def test_a_dashboard_of_an_app_shows_its_jobs(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="greet", queue="greetings")
    async def greet(name: str) -> str:
        return f"hello {name}"

    browser = Browser(dashboard(app))
    assert (await browser.get("/")).status_code == 200
    handle = await greet.aenqueue("Ada")
    assert "greet" in await browser.text(f"/jobs/{handle.id}")
    await app.close()


async def test_a_dashboard_of_a_url_runs_no_duties_and_closes_its_broker(tmp_path: Path) -> None:
    made = dashboard(f"sqlite:///{tmp_path}/jobs.db")
    assert (await Browser(made).get("/jobs")).status_code == 200
    broker = await made._state.broker()
    assert broker.config.duties is False
    await made.close()
    assert not broker.is_open
    assert (await Browser(made).get("/jobs")).status_code == 200
    await made.close()


async def test_a_broker_that_was_open_stays_open(broker: Broker) -> None:
    made = dashboard(broker)
    assert (await Browser(made).get("/jobs")).status_code == 200
    await made.close()
    assert broker.is_open


async def test_a_missing_store_is_a_503_until_it_exists(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    made = dashboard(f"sqlite:///{folder}/jobs.db")
    browser = Browser(made)
    answer = await browser.get("/jobs")
    assert answer.status_code == 503
    assert (await browser.get("/healthz")).status_code == 503
    folder.mkdir()
    assert (await browser.get("/jobs")).status_code == 200
    assert (await browser.get("/healthz")).status_code == 200
    await made.close()


@asynccontextmanager
async def lifespan_of(app: Any) -> AsyncIterator[None]:
    """Run the lifespan protocol of a server."""
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    outbox: asyncio.Queue[Message] = asyncio.Queue()
    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    receive: Receive = inbox.get
    send: Send = outbox.put
    running = asyncio.ensure_future(app(scope, receive, send))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    yield
    await inbox.put({"type": "lifespan.shutdown"})
    assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
    await running


async def test_a_dashboard_served_alone_closes_its_broker_at_shutdown(tmp_path: Path) -> None:
    broker = Broker(f"sqlite:///{tmp_path}/jobs.db", config=BrokerConfig(duties=False))
    made = dashboard(broker)
    async with lifespan_of(made):
        assert (await Browser(made).get("/jobs")).status_code == 200
        assert broker.is_open
    assert not broker.is_open
