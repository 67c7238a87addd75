"""The example ``django_site``: its one command serves the shop, and its worker ships an order."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest

from tests.cli.processes import eventually
from tests.support.bound import BOUND
from tests.support.servers.postgres_cluster import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "django_site"

pytestmark = pytest.mark.slow


def environment() -> dict[str, str]:
    """Return the environment without the settings that other tests have loaded in this process."""
    return {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "*.sqlite3*")
    return shutil.copytree(EXAMPLE, tmp_path / "django_site", ignore=ignored)


@pytest.fixture
def site(folder: Path) -> Iterator[tuple[str, OpenerDirector]]:
    """The address of the running site, and a browser with cookies."""
    port = free_port()
    running = subprocess.Popen([sys.executable, str(folder / "run.py"), str(port)], env=environment())
    yield f"http://127.0.0.1:{port}", build_opener(HTTPCookieProcessor(CookieJar()))
    running.send_signal(signal.SIGTERM)
    assert running.wait(BOUND) == 0


def test_an_order_is_shipped(site: tuple[str, OpenerDirector]) -> None:
    address, browser = site

    def get(path: str) -> str:
        try:
            text: str = browser.open(address + path, timeout=BOUND).read().decode()
        except URLError:  # The server has not started.
            return ""
        return text

    def post(path: str, **fields: str) -> None:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', get(path))
        assert token is not None
        data = urlencode({"csrfmiddlewaretoken": token[1], **fields}).encode()
        browser.open(address + path, data, timeout=BOUND)

    eventually(lambda: "Orders" in get("/"), "the page of orders")
    post("/", name="tea")
    eventually(lambda: '"job": "done"' in get("/orders/1"), "the end of the job")
    assert "tea</a>: shipped" in get("/")
    assert "Log in" in get("/jobs/")
    post("/admin/login/", username="admin", password="admin", next="/jobs/")
    assert "shop.tasks.ship" in get("/jobs/jobs")
    assert "shop.tasks.ship" in get("/admin/dayjob/job/")


def test_the_tests_of_the_example_pass(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "test"], cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=BOUND,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
