"""The dashboard under WSGI: mounted by path, behind the host's own login, with live pages that poll."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import httpx
import pytest

from dayjob import App, Broker, ConfigError
from dayjob.dashboard import User, WsgiDashboard
from dayjob.dashboard.security import MAX_FORM_BYTES
from tests.dashboard.browsing import BASE, BEARER, HTML, TOKEN

PREFIX = "/admin/jöbs"


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="greet")
    def greet(name: str) -> str:
        return name

    with app:
        greet.enqueue("ada")
    return app


class Site:
    """A host that mounts a dashboard, and its client."""

    def __init__(self, dashboard: WsgiDashboard) -> None:
        self.dashboard = dashboard
        self.client = httpx.Client(
            transport=httpx.WSGITransport(app=self._serve), base_url=BASE, headers=HTML
        )

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Serve as WSGI wants: with a character for each byte of the path."""
        prefix, path = (
            text.encode().decode("latin-1") for text in (PREFIX, environ["PATH_INFO"].removeprefix(PREFIX))
        )
        protocol = {"SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "127.0.0.1"}
        return self.dashboard(
            {**environ, **protocol, "SCRIPT_NAME": prefix, "PATH_INFO": path}, start_response
        )

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(PREFIX + path, **options)

    def post(self, path: str, fields: dict[str, str], **options: Any) -> httpx.Response:
        return self.client.post(PREFIX + path, data=fields, **options)


@pytest.fixture
def site(app: App) -> Iterator[Site]:
    site = Site(WsgiDashboard(app, token=TOKEN))
    yield site
    site.dashboard.close()


def csrf(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def test_a_login_and_an_action_work_under_a_prefix(site: Site, app: App) -> None:
    refused = site.get("/")
    assert (refused.status_code, refused.headers["location"]) == (303, "/admin/j%C3%B6bs/login?next=%2F")
    answer = site.post("/login", {"token": TOKEN, "csrf": csrf(site.get("/login"))})
    assert answer.status_code == 303, answer.text
    page = site.get("/")
    assert page.status_code == 200
    answer = site.post("/queues/pause", {"queue": "default", "csrf": csrf(page)})
    assert answer.status_code == 303, answer.text
    assert site.get("/api/queues", headers=BEARER).json()[0]["paused"] is True
    assert site.get("/static/dashboard.css").headers["content-type"].startswith("text/css")


def test_a_live_page_polls(site: Site) -> None:
    """The stream ends after its first update, though its lifetime is a minute. The browser reconnects."""
    answer = site.get("/events/overview", headers=BEARER)
    assert answer.headers["content-type"].startswith("text/event-stream")
    retry, data, rest = answer.text.split("\n\n")
    assert (retry, data[:5], rest) == ("retry: 1000", "data:", "")
    assert site.dashboard._dashboard._state.feeds.subscribers == 0


def test_the_host_decides_which_users_may_read_and_act(app: App) -> None:
    users = {"root": User("root"), "guest": User("guest", may_act=False)}
    site = Site(WsgiDashboard(app, authorize=lambda environ: users.get(environ.get("HTTP_X_LOGIN", ""))))
    try:
        assert site.get("/").status_code == 401
        assert site.get("/", headers={"X-Login": "guest"}).status_code == 200
        for login, expected in (("guest", 403), ("root", 303)):
            fields = {"queue": "default", "csrf": csrf(site.get("/", headers={"X-Login": "root"}))}
            answer = site.post("/queues/pause", fields, headers={"X-Login": login})
            assert answer.status_code == expected, answer.text
    finally:
        site.dashboard.close()


def test_a_large_body_is_refused_and_not_read_whole(app: App) -> None:
    body = BytesIO(b"a=" + b"x" * (2 * MAX_FORM_BYTES))
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST", "PATH_INFO": "/queues/pause", "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1", "CONTENT_LENGTH": str(2 * MAX_FORM_BYTES + 2), "wsgi.input": body,
        "CONTENT_TYPE": "application/x-www-form-urlencoded",
    }  # fmt: skip
    setup_testing_defaults(environ)
    statuses: list[str] = []
    made = WsgiDashboard(app)
    try:
        list(made(environ, lambda status, headers: statuses.append(status)))
    finally:
        made.close()
    assert [status[:3] for status in statuses] == ["413"]
    assert body.tell() == MAX_FORM_BYTES + 1


def test_a_broker_of_an_event_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a Broker: pass an App or a URL under WSGI"):
        WsgiDashboard(Broker("memory://"))  # type: ignore[arg-type]
