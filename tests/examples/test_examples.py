"""The examples start with the command of their README, do their work, and stop."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from dayjob.runtime.ids import new_key
from tests.cli.processes import ROOT, eventually
from tests.examples.conftest import StartSite
from tests.support.bound import BOUND
from tests.support.servers.postgres import server_url

pytestmark = pytest.mark.slow

README = (ROOT / "examples" / "README.md").read_text()


def test_every_command_of_the_readme_is_a_module() -> None:
    modules = re.findall(r"`python -m examples\.(\w+)`", README)
    assert len(modules) >= 3
    for module in modules:
        folder = ROOT / "examples" / module
        assert (folder / "__main__.py").exists() or folder.with_suffix(".py").exists()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    if request.param == "sqlite":
        yield {}
        return
    name = f"shop_{new_key().hex()}"
    with psycopg.connect(server_url(), autocommit=True) as console:
        console.execute(f"CREATE DATABASE {name}")
        try:
            yield {"DATABASE_URL": urlsplit(server_url())._replace(path=f"/{name}").geturl()}
        finally:
            console.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_shop_ships_an_order(start: StartSite, database: dict[str, str]) -> None:
    shop = start("examples.shop", **database)
    assert "<title>Shop</title>" in shop.send("/")[1]
    status, text = shop.send("/orders", b'{"item": "unicorn"}')
    assert status == 409, text
    status, text = shop.send("/orders", b'{"item": "tea"}')
    assert status == 202, text
    order = json.loads(text)
    *_, last = shop.follow(f"/shipments/{order['job']}/events")
    assert last == {"state": "done", "progress": 1.0, "message": "handed to the carrier"}
    [stored] = shop.json("/orders")  # The unicorn's order was rolled back, and its job with it.
    assert (stored["item"], stored["job"], stored["shipped"]) == ("tea", order["job"], True)
    assert [job["id"] for job in shop.json("/jobs/api/jobs")["jobs"]] == [order["job"]]
    assert shop.send("/shipments/unknown/events")[0] == 404
    shop.stop(-signal.SIGTERM)  # uvicorn repeats the signal at its end.


def test_the_newsletter_is_sent(start: StartSite, tmp_path: Path) -> None:
    site = start("examples.flask_site")
    assert "<title>Newsletter</title>" in site.send("/")[1]
    form = b"subject=News&addresses=ada%40example.com+grace%40example.com"
    status, text = site.send("/issues", form, "application/x-www-form-urlencoded")
    assert status == 202, text
    *_, last = site.follow(f"/issues/{json.loads(text)['id']}/events")
    assert last["state"] == "done"
    assert site.send("/jobs/")[0] == 200
    outbox = tmp_path / "outbox.txt"
    eventually(lambda: outbox.exists() and outbox.read_text().count("\n") == 2, "mails", site.command.output)
    site.stop(0)
    assert sorted(outbox.read_text().split("\n")) == [
        "", "'News' to 'ada@example.com'", "'News' to 'grace@example.com'",
    ]  # fmt: skip


def test_the_script_counts_words(tmp_path: Path) -> None:
    (tmp_path / "short.md").write_text("one two three")
    (tmp_path / "long.md").write_text("word " * 1200)
    done = subprocess.run(
        [sys.executable, "-m", "examples.script"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=BOUND, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "1,200", str(tmp_path / "long.md"), "3", str(tmp_path / "short.md"),
        "1,203", "words", "in", "2", "files",
    ]  # fmt: skip
