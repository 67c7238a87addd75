"""The extension for Flask: context in jobs, commands, dashboard, events, the job of a request."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
from flask import Flask, current_app, g
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import TestResponse

from dayjob import App, ConfigError, Context, JobState
from dayjob.contrib.flask import Dayjob, event_stream, job_or_404
from dayjob.dashboard import User, WsgiDashboard
from dayjob.testing import drain, sandbox
from tests.support.bound import BOUND


@pytest.fixture
def jobs() -> Iterator[App]:
    jobs = App("memory://")
    with sandbox(jobs):
        yield jobs


@pytest.fixture
def web() -> Flask:
    return Flask("shop")


# The application context.


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_job_has_the_application_context_and_its_teardown(jobs: App, web: Flask, kind: str) -> None:
    ended: list[Any] = []

    @web.teardown_appcontext
    def teardown(_: Any) -> None:
        ended.append(g.pop("order", None))

    @jobs.task
    def plain(order: int) -> str:
        g.order = order
        return current_app.name

    @jobs.task
    async def coroutine(order: int) -> str:
        g.order = order
        return current_app.name

    extension = Dayjob(jobs)
    extension.init_app(web)
    tasks: dict[str, Any] = {"plain": plain, "coroutine": coroutine}
    handles = tasks[kind].enqueue_many([(1,), (2,)])
    drain(jobs)
    assert [handle.result(timeout=0) for handle in handles] == ["shop", "shop"]
    assert sorted(ended) == [1, 2]
    assert not flask.has_app_context()


def test_other_middleware_has_the_context_too(web: Flask) -> None:
    seen: list[str] = []

    def middleware(ctx: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(current_app.name)
        return call_next()

    jobs = App("memory://", middleware=[middleware])
    jobs.task(name="work")(lambda: None)
    Dayjob(jobs, web)
    with sandbox(jobs):
        jobs.send("work")
        drain(jobs)
    assert seen == ["shop"]


def test_a_job_without_a_site_fails_with_the_remedy(jobs: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dayjob.contrib.flask._load_site", lambda: Flask("another"))
    jobs.task(name="work")(lambda: None)
    Dayjob(jobs)
    jobs.send("work")
    with pytest.raises(ConfigError, match=r"call init_app\(web\) of Dayjob\(jobs\)"):
        drain(jobs)


def test_the_url_is_that_of_the_configuration(tmp_path: Path) -> None:
    jobs = App("memory://")
    work = jobs.task(name="work")(lambda: None)
    work.enqueue()
    extension = Dayjob(jobs)
    for name in ("one", "two"):
        web = Flask("shop")
        web.config["DAYJOB_URL"] = f"sqlite:///{tmp_path}/{name}.db"
        extension.init_app(web)
        assert work.enqueue().status() is JobState.PENDING
        assert (tmp_path / f"{name}.db").exists()
        assert drain(jobs) == 1
    web = Flask("shop")
    web.config["DAYJOB_URL"] = "nowhere://"
    with pytest.raises(ConfigError, match="nowhere"):
        extension.init_app(web)
    assert jobs.url.endswith("two.db")
    jobs.call(jobs.close)


def test_a_sandbox_keeps_its_store_when_a_factory_is_called_in_it(jobs: App, tmp_path: Path) -> None:
    """A test would otherwise write into the storage of the configuration."""
    web = Flask("shop")
    web.config["DAYJOB_URL"] = f"sqlite:///{tmp_path}/production.db"
    Dayjob(jobs, web)
    jobs.task(name="work")(lambda: None).enqueue()
    assert drain(jobs) == 1
    assert list(tmp_path.iterdir()) == []


# The job of a request, and its events.


@pytest.fixture
def client(jobs: App, web: Flask) -> FlaskClient:
    Dayjob(jobs, web)

    @jobs.task(name="export")
    def export(ctx: Context, rows: int) -> int:
        ctx.progress(0.5, "half")
        return rows

    jobs.task(name="other")(lambda: None)
    views: dict[str, Callable[..., Any]] = {
        "/start": lambda: export.enqueue(3).id,
        "/exports/<id>": lambda id: {"state": job_or_404(export, id).status()},
        "/events/<id>": lambda id: event_stream(job_or_404(jobs, id)),
    }
    for path, view in views.items():
        web.add_url_rule(path, path.partition("<")[0].strip("/"), view)
    return web.test_client()


def test_the_job_of_a_request_is_one_of_its_task(jobs: App, client: FlaskClient) -> None:
    id = client.get("/start").text
    assert client.get(f"/exports/{id}").json == {"state": "pending"}
    for unknown in ("five", "0191e0a0-0000-7000-8000-000000000001", jobs.send("other").id):
        assert client.get(f"/exports/{unknown}").status_code == 404


def messages(answer: TestResponse) -> list[tuple[str, Any]]:
    """Return the id and the data of each message."""
    assert answer.mimetype == "text/event-stream"
    first, *others = answer.text.removesuffix("\n\n").split("\n\n")
    assert first == "retry: 1000"
    fields = [dict(line.split(": ", 1) for line in message.split("\n")) for message in others]
    return [(message["id"], json.loads(message["data"])) for message in fields]


def test_events_occupy_no_thread_until_the_job_has_finished(jobs: App, client: FlaskClient) -> None:
    id = client.get("/start").text
    [(first, data)] = messages(client.get(f"/events/{id}"))
    assert data == {"state": "pending", "progress": 0.0, "message": ""}
    assert messages(client.get(f"/events/{id}", headers={"Last-Event-ID": first})) == []
    drain(jobs)
    [(_, data), end] = messages(client.get(f"/events/{id}", headers={"Last-Event-ID": first}))
    assert data == {"state": "done", "progress": 0.5, "message": "half"}
    assert end == ("end", data)
    assert client.get(f"/events/{id}", headers={"Last-Event-ID": "end"}).status_code == 204


# The dashboard.


def staff() -> User | None:
    login = flask.request.headers.get("X-Login")
    if login is None:
        flask.abort(flask.redirect("/login"))
    return User(login, may_act=login == "root") if login != "guest" else None


@pytest.mark.parametrize("prefix", ["/jobs", "/admin/jobs"])
def test_the_dashboard_is_a_blueprint_behind_the_login_of_the_site(
    jobs: App, web: Flask, prefix: str
) -> None:
    jobs.task(name="work")(lambda: None)
    extension = Dayjob(jobs, web)
    blueprint = extension.dashboard(staff)
    web.register_blueprint(blueprint, url_prefix=prefix)
    jobs.send("work")
    client = web.test_client()
    answer = client.get(f"{prefix}/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login")
    assert client.get(f"{prefix}/", headers={"X-Login": "guest"}).status_code == 401
    page = client.get(f"{prefix}/jobs", headers={"X-Login": "root"})
    assert page.status_code == 200
    assert "work" in page.text
    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
    assert len(links) > 5
    assert all(link.startswith(f"{prefix}/") for link in links), links
    assert f"{prefix}/dead" in links
    page = client.get(f"{prefix}/", headers={"X-Login": "root"})
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found is not None
    fields = {"queue": "default", "csrf": found[1]}
    for login, status in (("reader", 403), ("root", 303)):
        answer = client.post(f"{prefix}/queues/pause", data=fields, headers={"X-Login": login})
        assert answer.status_code == status, answer.text


def test_the_dashboard_beside_the_application_has_its_login_too(jobs: App, web: Flask) -> None:
    """WSGI dispatch, as ``docs/dashboard.md`` describes it."""
    web.secret_key = "a secret"

    def staff_of(environ: dict[str, Any]) -> User | None:
        with web.request_context(environ):
            return User(flask.session["user"]) if "user" in flask.session else None

    mounted = WsgiDashboard(jobs, authorize=staff_of)
    web.wsgi_app = DispatcherMiddleware(web.wsgi_app, {"/jobs": mounted})  # type: ignore[method-assign]
    client = web.test_client()
    assert client.get("/jobs/").status_code == 401
    with client.session_transaction() as session:
        session["user"] = "ada"
    assert client.get("/jobs/").status_code == 200
    assert client.get("/other").status_code == 404
    mounted.close()


# The commands.

SITE = """
from dayjob import App
from dayjob.contrib.flask import Dayjob
from flask import Flask, current_app

jobs = App("memory://")
dayjob = Dayjob(jobs)


@jobs.task
def plain() -> str:
    return current_app.config["NAME"]


@jobs.task(pool="process")
def in_child() -> str:
    return current_app.config["NAME"]


def create_app(name: str = "default") -> Flask:
    web = Flask("shop")
    web.config.update(DAYJOB_URL="sqlite:///jobs.db", NAME=name)
    dayjob.init_app(web)
    return web
"""


def run_flask(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flask", "--app", "site_of_test:create_app('a name')", "dayjob", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=BOUND, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_flask_runs_the_commands_and_the_worker_of_a_factory(tmp_path: Path) -> None:
    (tmp_path / "site_of_test.py").write_text(SITE)
    for task in ("plain", "in_child"):
        done = run_flask(tmp_path, "enqueue", f"site_of_test.{task}")
        assert done.returncode == 0, done.stderr
    # Two processes, under a supervisor, each of which loads the site by itself.
    done = run_flask(tmp_path, "worker", "--burst", "--processes", "2")
    assert done.returncode == 0, done.stderr
    done = run_flask(tmp_path, "jobs", "--json")
    results = [job["result"] for job in json.loads(done.stdout)["jobs"]]
    assert results == ["a name", "a name"], done.stdout


def test_the_help_of_the_command_is_that_of_dayjob(jobs: App, web: Flask) -> None:
    jobs.task(name="work")(lambda: None)
    Dayjob(jobs, web)
    runner = web.test_cli_runner()
    for arguments in (["dayjob"], ["dayjob", "--help"]):
        result = runner.invoke(args=arguments)
        assert result.output.startswith("Usage: flask dayjob [OPTIONS] COMMAND"), result.output
    assert "Usage: flask dayjob worker" in runner.invoke(args=["dayjob", "worker", "--help"]).output
