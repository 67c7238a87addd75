"""The page about Django: a new project by its commands and files runs a job, passes its tests and checks."""

from __future__ import annotations

import re
import shlex
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

PAGE = (Path(__file__).parents[2] / "docs" / "django.md").read_text()

pytestmark = pytest.mark.slow


def write_files(text: str, folder: Path) -> None:
    """Append each example to the file that its first line names. ``urls.py`` replaces that of the project."""
    for block in re.finditer(r"^```python\n# ([\w/.]+)(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        file = folder / block[1]
        before = "" if file.name in ("urls.py", "tests.py") or not file.exists() else file.read_text()
        file.write_text(f"{before}#{block[2]}")


def commands(text: str) -> list[list[str]]:
    """Return the commands of the page, for this interpreter."""
    found = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line) for block in found for line in block.splitlines()]
    programs = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}
    return [[*programs[line[0]], *line[1:]] for line in lines if line[0] in programs]


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


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
            url = urlsplit(server_url())
            settings = {
                "ENGINE": "django.db.backends.postgresql", "NAME": name, "HOST": url.hostname,
                "PORT": url.port, "USER": url.username, "PASSWORD": url.password or "",
            }  # fmt: skip
            yield f"DATABASES = {{'default': {settings!r}}}\n"
        finally:
            console.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_page_leads_from_startproject_to_a_job(database: str, tmp_path: Path) -> None:
    first = PAGE.partition("## Settings\n")[0]
    startproject, startapp, migrate, enqueue, worker = commands(first)
    run(tmp_path, *startproject)
    run(tmp_path, *startapp)
    write_files(first, tmp_path)
    with (tmp_path / "config" / "settings.py").open("a") as settings:
        settings.write(database)
    run(tmp_path, *migrate)
    run(tmp_path, *enqueue)
    assert "shop.tasks.add" in run(tmp_path, *worker)

    write_files(PAGE.removeprefix(first), tmp_path)
    manage = [sys.executable, "manage.py"]
    if sys.version_info < (3, 12):
        with (tmp_path / "config" / "settings.py").open("a") as settings:
            settings.write("INSTALLED_APPS += ['django_tasks']\n")
    run(tmp_path, *manage, "makemigrations", "shop")
    assert "no issues" in run(tmp_path, *manage, "check", "--fail-level", "WARNING")
    assert "OK" in run(tmp_path, *manage, "test")
