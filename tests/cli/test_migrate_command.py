"""``dayjob migrate``: what it says and does on each kind of store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from dayjob import Broker
from dayjob.cli import main
from tests.cli.commands import ask
from tests.support.servers import postgres


def run(*arguments: str, url: str | None = None) -> Result:
    return CliRunner().invoke(main, ["migrate", *arguments], env={"DAYJOB_URL": url})


async def enqueue(broker: Broker) -> bool:
    return (await broker.enqueue("q")).created


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return postgres.schema_url(tmp_path)


def test_a_new_store_gets_its_layout_and_an_up_to_date_one_is_left_alone(url: str) -> None:
    first, second = run(url), run(url)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "created" in first.output
    assert ": nothing to do" in second.output
    assert ask(url, enqueue)


def test_the_url_may_come_from_the_environment(url: str) -> None:
    assert "created" in run(url=url).output


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    url = postgres.schema_url(tmp_path)
    said = run(url).output
    assert ":***@" in said
    assert url.split(":")[2].split("@")[0] not in said


def test_the_sql_changes_nothing_and_does_what_it_says_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    script = run(url, "--sql").output
    assert not (tmp_path / "jobs.db").exists()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.executescript(script)
    assert "nothing to do" in run(url).output
    assert ask(url, enqueue)


def test_the_sql_changes_nothing_and_does_what_it_says_on_postgres(tmp_path: Path) -> None:
    url = postgres.schema_url(tmp_path)
    script = run(url, "--sql").output
    schema = postgres.schema_of(tmp_path)
    with closing(psycopg.connect(postgres.server_url(), autocommit=True)) as connection:
        there = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
        assert connection.execute(there, [schema]).fetchone() == (0,)
        connection.execute(script.encode())
        assert connection.execute(there, [schema]).fetchone() == (1,)
    assert "nothing to do" in run(url).output
    assert ask(url, enqueue)


def test_a_store_without_a_layout_says_so() -> None:
    said = run("memory://")
    assert said.exit_code == 0
    assert said.output == "memory:// has no layout to migrate.\n"


@pytest.mark.parametrize(
    "url", ["nosuch://x", "postgresql://localhost/x?colour=blue", "sqlite:///no/such/folder/x"]
)
def test_a_url_that_can_not_be_used_is_wrong_usage(url: str) -> None:
    said = run(url)
    assert said.exit_code == 2
    assert url in said.output


def test_a_server_that_is_not_there_is_told_apart() -> None:
    said = run("postgresql://127.0.0.1:1/x?timeout=0.2")
    assert said.exit_code == 3
    assert "check that the server runs" in said.output
