"""The examples for web frameworks in the docs run: their files, their tests, and their worker command."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from dayjob.runtime.ids import new_key
from tests.support.bound import BOUND
from tests.support.servers.postgres import server_url

PAGE = Path(__file__).parents[2] / "docs" / "web.md"

pytestmark = pytest.mark.slow


def write_files(section: str, folder: Path) -> None:
    """Append each example of a section to the file that its first line names."""
    [text] = [part for part in PAGE.read_text().split("\n## ") if part.startswith(f"{section}\n")]
    for block in re.finditer(r"^```python\n# ([\w/.]+)(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        file = folder / block[1]
        file.parent.mkdir(exist_ok=True)
        with file.open("a") as stream:
            stream.write(f"#{block[2]}")


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("framework", ["FastAPI", "Flask"])
def test_the_tests_of_the_example_pass(framework: str, tmp_path: Path) -> None:
    write_files(framework, tmp_path)
    assert "1 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")


DJANGO = """
import os

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
django.setup()

from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import Client

from dayjob import InvalidState
from shop.jobs import app, ship

call_command("makemigrations", "shop", verbosity=0)
call_command("migrate", verbosity=0)
web = Client()
id = web.post("/orders", {"name": "tea"}).json()["id"]
assert web.get(f"/jobs/{id}").json()["state"] == "pending"

for each in (connection, connections["default"]):
    try:
        with transaction.atomic():
            lost = ship.using(connection=each).enqueue(1)
            raise ValueError
    except ValueError:
        assert lost.status() is None
    with transaction.atomic():
        kept = ship.using(connection=each).enqueue(1)
    assert kept.created and kept.status() == "pending"
    try:
        ship.using(connection=each).enqueue(1)
    except InvalidState as error:
        assert "'default' has no open transaction: enqueue in transaction.atomic()" in str(error)
    else:
        raise AssertionError("accepted outside of a transaction")
app.close()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The settings of a database, after those of a new Django project."""
    if request.param == "sqlite":
        yield ""
        return
    name = f"django_{new_key().hex()}"
    with psycopg.connect(server_url(), autocommit=True) as console:
        console.execute(f"CREATE DATABASE {name}")
        try:
            url = urlsplit(server_url())._replace(path=f"/{name}")
            settings = {
                "ENGINE": "django.db.backends.postgresql", "NAME": name, "HOST": url.hostname,
                "PORT": url.port, "USER": url.username, "PASSWORD": url.password or "",
            }  # fmt: skip
            yield f"DATABASES = {{'default': {settings!r}}}\nDAYJOB_URL = {url.geturl()!r}\n"
        finally:
            console.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_django_project_enqueues_in_its_transactions(database: str, tmp_path: Path) -> None:
    run(tmp_path, "-m", "django", "startproject", "config", ".")
    (tmp_path / "config" / "urls.py").unlink()
    (tmp_path / "shop").mkdir()
    for package in ("shop", "shop/migrations"):
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "__init__.py").touch()
    write_files("Django", tmp_path)
    with (tmp_path / "config" / "settings.py").open("a") as settings:
        settings.write(f"{database}ALLOWED_HOSTS = ['*']\n")
    (tmp_path / "check.py").write_text(DJANGO)
    run(tmp_path, "check.py")
    run(tmp_path, "-m", "dayjob", "worker", "shop.worker:app", "--burst")
    if not database:
        run(tmp_path, "manage.py", "test")
