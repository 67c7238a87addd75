"""Over a real socket: the command, a worker's dashboard, and errors at startup."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dayjob import JobState
from dayjob.cli import main
from dayjob.cli.dashboard import BASIC_VARIABLE, READ_TOKEN_VARIABLE, TOKEN_VARIABLE
from dayjob.dashboard.server import bind, binds_loopback
from dayjob.errors import ConfigError
from tests.cli.processes import Command, Start, eventually, starting, with_broker
from tests.dashboard.browsing import TOKEN, make_dead
from tests.support.bound import BOUND

ADDRESS = re.compile(r"is on http://127\.0\.0\.1:(\d+)/")
LINK = re.compile(r"is on http://127\.0\.0\.1:\d+/login#(\S+)")


class HttpClient:
    """Sends requests over a socket, like curl, with the given headers only."""

    def __init__(self, port: int, **headers: str) -> None:
        self.port = port
        self._headers = headers

    def __call__(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        try:
            connection.request(
                method,
                path,
                body,
                {name.replace("_", "-"): value for name, value in (self._headers | headers).items()},
            )
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, received, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, tmp_path, {"PYTHONUNBUFFERED": "1"}) as starting_:
        yield starting_


def port_of(command: Command) -> int:
    eventually(lambda: ADDRESS.search(command.output()) is not None, "an address", command.output)
    found = ADDRESS.search(command.output())
    assert found is not None
    return int(found[1])


def with_link(command: Command) -> HttpClient:
    """Return a client with the token of the link that the command printed."""
    port = port_of(command)
    found = LINK.search(command.output())
    assert found is not None, command.output()
    return HttpClient(port, Authorization=f"Bearer {found[1]}")


def run(*arguments: str, **environment: str | None) -> Result:
    return CliRunner(env={TOKEN_VARIABLE: None, **environment}).invoke(main, ["dashboard", *arguments])


@pytest.mark.slow
def test_the_command_serves_a_store_until_it_is_stopped(start: Start, url: str) -> None:
    [id] = with_broker(url, lambda broker: make_dead(broker))
    command = start(url, "--port", "0", "--no-login", command="dashboard")
    curl = HttpClient(port_of(command))
    status, headers, text = curl("/dead")
    assert status == 200
    assert "shop.load" in text
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["set-cookie"].lower().count("samesite=strict") == 1
    assert "server" not in headers
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    for path in (f"/jobs/{id}/requeue", "/dead/purge", f"/api/jobs/{id}/requeue"):
        assert curl(path, "POST", "all=yes", **form)[0] == 403
    assert curl("/dead", Host="evil.example")[0] == 403
    assert len(with_broker(url, lambda broker: broker.dead_jobs())) == 1
    found = re.search(r'name="csrf" value="(\w+)"', text)
    assert found is not None
    cookie = headers["set-cookie"].partition(";")[0]
    status, headers, _ = curl(f"/jobs/{id}/requeue", "POST", f"csrf={found[1]}", Cookie=cookie, **form)
    assert (status, headers["location"]) == (303, f"/jobs/{id}?message=requeued")
    job = with_broker(url, lambda broker: broker.get(id))
    assert job is not None
    assert job.state is JobState.PENDING
    assert command.stop() == 0
    assert f"job.requeue by local from 127.0.0.1 on '{id}': requeued" in command.output()
    assert "Traceback" not in command.output()


@pytest.mark.slow
def test_a_shutdown_does_not_wait_for_live_streams(start: Start, url: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("email"))
    command = start(url, "--port", "0", "--no-login", command="dashboard")
    with socket.create_connection(("127.0.0.1", port_of(command)), timeout=BOUND) as connection:
        connection.sendall(b"GET /events/overview HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = b""
        while b"total-pending" not in received:
            received += connection.recv(65536)
        command.signal(signal.SIGINT)
        assert command.wait() == 0
    assert "Traceback" not in command.output()


@pytest.mark.slow
def test_with_a_token_it_may_listen_on_every_address(start: Start, url: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("email"))
    command = start(url, "--port", "0", "--host", "0.0.0.0", "--token", TOKEN, command="dashboard")
    eventually(lambda: "is on http://0.0.0.0:" in command.output(), "an address", command.output)
    curl = HttpClient(int(command.output().rpartition("0.0.0.0:")[2].partition("/")[0]))
    assert curl("/api/queues", Host="jobs.example")[0] == 401
    status, _, text = curl("/api/queues", Host="jobs.example", Authorization=f"Bearer {TOKEN}")
    assert status == 200
    assert json.loads(text)[0]["queue"] == "email"
    assert TOKEN not in command.output()
    assert command.stop() == 0


@pytest.mark.slow
def test_root_path_serves_behind_a_proxy_that_strips_the_path(start: Start, url: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("email"))
    command = start(
        url, "--port", "0", "--root-path", "/ops", "--allow-host", "jobs.example", "--token", TOKEN,
        "--proxy", "127.0.0.1", command="dashboard",
    )  # fmt: skip
    eventually(lambda: "/ops/" in command.output(), "an address", command.output)
    port = int(command.output().rpartition("127.0.0.1:")[2].partition("/")[0])
    curl = HttpClient(port, Authorization=f"Bearer {TOKEN}")
    status, headers, text = curl("/jobs", Host="jobs.example", X_Forwarded_Proto="https")
    assert status == 200
    assert 'href="/ops/jobs"' in text
    assert "secure" in headers["set-cookie"].lower()
    assert "path=/ops" in headers["set-cookie"].lower()
    assert curl("/jobs", Host="other.example")[0] == 403


# Startup.


def test_another_address_is_refused_without_a_token(url: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("email"))
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        result = run(url, "--host", host)
        assert result.exit_code == 2
        assert "so set --token" in result.output
        assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "192.0.2.1", "--token", TOKEN), "not an address of this machine"),
        (("--host", "no.such.host.invalid", "--token", TOKEN), "cannot be resolved"),
        (("--token", "short"), "the token 'token' has fewer than 16 characters"),
        (("--read-token", "short"), "the token 'reader' has fewer than 16 characters"),
        (("--token", "a=" + "x" * 16, "--read-token", "a=" + "y" * 16), "two tokens have the name 'a'"),
        (("--allow-host", "jobs.example"), "so set --token"),
        (("--proxy", "nginx", "--token", TOKEN), "the proxy 'nginx' is not an address"),
        (("--no-login", "--token", TOKEN), "leave out --token"),
        (("--no-login", "--host", "0.0.0.0"), "leave out --token"),
        (("--no-login", "--allow-host", "jobs.example"), "leave out --token"),
        (("--basic", "ada"), "pass user:password"),
        (("--redact", "("), "is not a regular expression"),
        (("--root-path", "ops"), "must begin with /"),
        (("--port", "70000"), "is not in the range"),
    ],
)
def test_an_invalid_option_is_a_usage_error(url: str, arguments: tuple[str, ...], message: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("email"))
    result = run(url, *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_port_in_use_is_a_usage_error(url: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("email"))
    with bind("127.0.0.1", 0) as taken:
        result = run(url, "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "is in use: pass another port" in result.output


def test_a_missing_store_is_exit_code_3(url: str) -> None:
    result = run(url)
    assert result.exit_code == 3
    assert "there is no file" in result.output


def test_without_the_extra_the_error_names_the_package_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run(url)
    assert result.exit_code == 2
    assert "pip install 'dayjob[dashboard]'" in result.output


def test_loopback_addresses_are_recognised() -> None:
    assert binds_loopback("127.0.0.1")
    assert binds_loopback("127.9.9.9")
    assert binds_loopback("localhost")
    assert binds_loopback("::1")
    for other in ("0.0.0.0", "::", "192.0.2.1", "", "no.such.host.invalid"):
        assert not binds_loopback(other), other
    with pytest.raises(ConfigError):
        bind("192.0.2.1", 0)


# The dashboard of a worker.

JOBS = """
    import time
    from dayjob import App

    app = App("{url}")

    @app.task(name="block", queue="blocks")
    async def block(seconds: float) -> None:
        time.sleep(seconds)
"""


def write_jobs(folder: Path, url: str) -> None:
    (folder / "jobs.py").write_text(dedent(JOBS).replace("{url}", url))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["sqlite", "memory", "file"])
def test_a_worker_serves_a_dashboard_that_answers_while_its_loop_is_blocked(
    start: Start, url: str, tmp_path: Path, where: str
) -> None:
    if where == "file":
        pytest.importorskip("slatedb")
    chosen = {"sqlite": url, "memory": "memory://shared", "file": f"file://{tmp_path}/store"}[where]
    write_jobs(tmp_path, chosen)
    command = start("jobs:app", "--dashboard", "0", "--shutdown-timeout", "5", command="worker")
    curl = with_link(command)
    eventually(lambda: len(json.loads(curl("/api/workers")[2])) == 1, "a worker", command.output)
    assert curl("/workers")[0] == 200
    if where == "sqlite":

        def block(broker: Any) -> Any:
            return broker.enqueue("blocks", b'{"seconds": 3}', task="block")

        with_broker(url, block)
        eventually(
            lambda: json.loads(curl("/api/overview")[2])["total"]["running"] == 1, "a run", command.output
        )
        for _ in range(5):
            assert curl("/jobs")[0] == 200
        assert json.loads(curl("/api/overview")[2])["total"]["running"] == 1
    assert command.stop() == 0
    assert "Traceback" not in command.output()


@pytest.mark.slow
def test_with_several_processes_the_first_serves_and_so_does_its_replacement(
    start: Start, url: str, tmp_path: Path
) -> None:
    write_jobs(tmp_path, url)
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = start("jobs:app", "--dashboard", str(port), "--processes", "2", command="worker")
    command.wait_for_output("the dashboard is on", 1)
    curl = with_link(command)
    eventually(lambda: len(json.loads(curl("/api/workers")[2])) == 2, "two workers", command.output)
    found = re.search(r"worker process 1 has pid (\d+)", command.output())
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)
    command.wait_for_output("the dashboard is on", 2)

    def answers() -> bool:
        try:
            return HttpClient(port)("/healthz")[0] == 200
        except OSError:
            return False

    eventually(answers, "an answer", command.output)
    assert command.stop() == 0


@pytest.mark.slow
def test_a_worker_with_a_port_in_use_exits_with_an_error(start: Start, url: str, tmp_path: Path) -> None:
    write_jobs(tmp_path, url)
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for more in ((), ("--processes", "2")):
            command = start("jobs:app", "--dashboard", str(port), *more, command="worker")
            assert command.wait() == 2
            assert f"--dashboard {port}: port {port} on 127.0.0.1 is in use" in command.output()
            assert "Traceback" not in command.output()


@pytest.mark.slow
def test_the_dashboard_of_a_worker_requires_the_token_of_the_environment(url: str, tmp_path: Path) -> None:
    write_jobs(tmp_path, url)
    with starting(tmp_path, tmp_path, {TOKEN_VARIABLE: TOKEN}) as start:
        command = start("jobs:app", "--dashboard", "0", command="worker")
        curl = HttpClient(port_of(command))
        assert LINK.search(command.output()) is None
        assert curl("/api/workers")[0] == 401
        assert curl("/api/workers", Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.slow
def test_the_dashboard_of_a_worker_requires_the_password_of_the_environment(url: str, tmp_path: Path) -> None:
    write_jobs(tmp_path, url)
    with starting(tmp_path, tmp_path, {BASIC_VARIABLE: "ada:lovelace"}) as start:
        curl = HttpClient(port_of(start("jobs:app", "--dashboard", "0", command="worker")))
        assert curl("/api/workers")[0] == 401
        assert curl("/api/workers", Authorization="Basic " + b64encode(b"ada:lovelace").decode())[0] == 200


@pytest.mark.parametrize("variable", [TOKEN_VARIABLE, READ_TOKEN_VARIABLE, BASIC_VARIABLE])
@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_variable_is_a_usage_error(url: str, variable: str, value: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("email"))
    result = run(url, **{variable: value})
    assert result.exit_code == 2
    assert f"{variable} is empty: set it, or remove it" in result.output


@pytest.mark.slow
def test_without_a_token_the_command_makes_one_and_prints_a_link(start: Start, url: str) -> None:
    with_broker(url, lambda broker: broker.enqueue("email"))
    command = start(url, "--port", "0", command="dashboard")
    curl = with_link(command)
    assert curl("/api/queues")[0] == 200
    assert HttpClient(curl.port)("/api/queues")[0] == 401
    assert HttpClient(curl.port)("/")[0] == 303
    assert command.stop() == 0


def test_new_tokens_are_long_and_different() -> None:
    made = {run("--new-token").output for _ in range(2)}
    assert len(made) == 2
    assert all(len(each.strip()) >= 32 for each in made)
