"""``dayjob migrate`` on each kind of store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from dayjob import Broker
from dayjob.cli import main
from tests.cli.processes import with_broker
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


def test_a_new_store_gets_its_layout_and_an_up_to_date_store_is_not_changed(url: str) -> None:
    first, second = run(url), run(url)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "created" in first.output
    assert "is up to date" in second.output
    assert with_broker(url, enqueue)


def test_the_url_may_come_from_the_environment(url: str) -> None:
    assert "created" in run(url=url).output


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    url = postgres.schema_url(tmp_path)
    output = run(url).output
    assert ":***@" in output
    assert url.split(":")[2].split("@")[0] not in output


def test_sql_changes_nothing_and_its_script_creates_the_layout_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    script = run(url, "--sql").output
    assert not (tmp_path / "jobs.db").exists()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.executescript(script)
    assert "is up to date" in run(url).output
    assert with_broker(url, enqueue)


def test_sql_changes_nothing_and_its_script_creates_the_layout_on_postgres(tmp_path: Path) -> None:
    url = postgres.schema_url(tmp_path)
    script = run(url, "--sql").output
    schema = postgres.schema_of(tmp_path)
    with closing(psycopg.connect(postgres.server_url(), autocommit=True)) as connection:
        exists = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
        assert connection.execute(exists, [schema]).fetchone() == (0,)
        connection.execute(script.encode())
        assert connection.execute(exists, [schema]).fetchone() == (1,)
    assert "is up to date" in run(url).output
    assert with_broker(url, enqueue)


def test_sql_of_an_older_store_migrates_it(url: str) -> None:
    run(url)
    assert "CREATE TABLE" not in run(url, "--sql").output
    assert "CREATE TABLE" in run(url, "--sql", "--from", "0").output
    assert "CREATE TABLE" in run(url, "--sql", "--from", "1").output


def test_a_layout_to_start_from_is_for_sql_only(url: str) -> None:
    result = run(url, "--from", "1")
    assert result.exit_code == 2
    assert "--from is for --sql" in result.output


def test_an_unknown_layout_to_start_from_is_a_usage_error(url: str) -> None:
    result = run(url, "--sql", "--from", "99")
    assert result.exit_code == 2
    assert "there is no layout 99" in result.output


def test_a_store_without_a_layout_is_reported() -> None:
    result = run("memory://")
    assert result.exit_code == 0
    assert result.output == "memory:// has no layout to migrate.\n"


@pytest.mark.parametrize(
    "url", ["nosuch://x", "postgresql://localhost/x?colour=blue", "sqlite:///no/such/folder/x"]
)
def test_an_unusable_url_is_a_usage_error(url: str) -> None:
    result = run(url)
    assert result.exit_code == 2
    assert url.partition("=")[0] in result.output  # values of unknown options may be secrets


def test_an_unavailable_server_has_its_own_exit_code() -> None:
    result = run("postgresql://127.0.0.1:1/x?timeout=0.2")
    assert result.exit_code == 3
    assert "check that the server runs" in result.output
