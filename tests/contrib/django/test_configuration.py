"""The setting ``DAYJOB``: its checks, the URL of the site's database, and ``manage.py dayjob``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings

from dayjob import BrokerConfig, ConfigError
from dayjob.cli import main
from dayjob.contrib.django import app
from dayjob.contrib.django.configuration import database_url, shared_alias
from dayjob.contrib.django.management.commands.dayjob import APP, _without_django_options, on_site
from tests.contrib.django.settings import FOLDER
from tests.contrib.django.tasks import add

Configure = Callable[[Any], None]


def found() -> dict[str, str]:
    """Return the hints of the checks by their ids."""
    return {each.id: each.hint for each in run_checks(tags=["dayjob"])}


WRONG = [
    (None, "E001", "DAYJOB = {"),
    ("sqlite:///jobs.db", "E001", "DAYJOB = {"),
    ({"DATABASE": "default", "WORKERS": 3}, "E002", "URL, DATABASE, OPTIONS, CONFIG, TRANSACTIONAL"),
    ({"URL": b"redis://"}, "E002", "redis://localhost"),
    ({"DATABASE": "default", "CONFIG": {}}, "E002", "dayjob.BrokerConfig"),
    ({"DATABASE": "default", "TRANSACTIONAL": 1}, "E002", "True or False"),
    ({}, "E003", "DATABASE"),
    ({"URL": "memory://", "DATABASE": "default"}, "E003", "DATABASE"),
    ({"URL": "memory://", "OPTIONS": {}}, "E003", "?name=value"),
    ({"URL": "mysql://nowhere"}, "E004", "DAYJOB"),
    ({"DATABASE": "default", "OPTIONS": {"schema": "jobs"}}, "E004", "DAYJOB"),
    ({"DATABASE": "replica"}, "E005", "default, other, pg"),
]


@pytest.mark.parametrize(("value", "id", "hint"), WRONG)
def test_a_mistake_is_reported_with_a_hint_and_refused_at_use(
    configured: Configure, value: Any, id: str, hint: str
) -> None:
    configured(value)
    assert list(found()) == [f"dayjob.{id}"]
    assert hint in found()[f"dayjob.{id}"]
    with pytest.raises(ConfigError, match=r".: \w"):
        add.enqueue(1, 2)
    with pytest.raises(CommandError, match=r".: \w"):
        call_command("dayjob", "queues")


def test_a_database_without_support_is_reported(
    configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured({"DATABASE": "other"})
    monkeypatch.setattr(connections["other"], "vendor", "mysql")
    assert list(found()) == ["dayjob.E005"]


@pytest.mark.parametrize(
    "value",
    [
        {"DATABASE": "default"},
        {"URL": "memory://"},
        {"URL": "redis://localhost", "TRANSACTIONAL": False, "CONFIG": BrokerConfig(max_payload=1000)},
        {"DATABASE": "default", "OPTIONS": {"timeout": 5}},
    ],
)
def test_a_correct_setting_has_no_findings(configured: Configure, value: Any) -> None:
    configured(value)
    assert found() == {}
    assert app.url


def test_a_sqlite_database_that_locks_late_has_a_warning(configured: Configure) -> None:
    configured({"DATABASE": "default"})
    options = connections.settings["default"]["OPTIONS"]
    mode = options.pop("transaction_mode")
    try:
        assert "IMMEDIATE" in found()["dayjob.W001"]
    finally:
        options["transaction_mode"] = mode


def test_a_pool_without_health_checks_has_a_warning(configured: Configure) -> None:
    configured({"DATABASE": "pg"})
    database = connections.settings["pg"]
    database["OPTIONS"] = {"pool": True}
    try:
        assert "CONN_HEALTH_CHECKS" in found()["dayjob.W003"]
    finally:
        database["OPTIONS"] = {}


def test_psycopg_2_has_a_warning(configured: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    configured({"DATABASE": "pg"})
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
    assert "psycopg 3" in found()["dayjob.W002"]


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (
            {"HOST": "db", "PORT": 5433, "USER": "me@x", "PASSWORD": "p/w:?", "NAME": "a b"},
            "postgresql://me%40x:p%2Fw%3A%3F@db:5433/a%20b",
        ),
        ({"HOST": "", "USER": "", "NAME": "shop"}, "postgresql:///shop"),
        ({"HOST": "/run/pg", "PORT": "6", "NAME": "shop"}, "postgresql:///shop?host=%2Frun%2Fpg&port=6"),
        (
            {"HOST": "db", "NAME": "shop", "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql://db/shop?sslmode=require",
        ),
    ],
)
def test_a_postgresql_database_has_the_url_of_its_settings(settings: dict[str, Any], url: str) -> None:
    database = connections["pg"].settings_dict
    before = dict(database)
    database.update({"PORT": "", "USER": "", "PASSWORD": "", "OPTIONS": {}} | settings)
    try:
        assert database_url("pg") == url
        assert shared_alias(url.replace("db/", "DB/") + "&schema=jobs" * ("?" in url)) == "pg"
        assert shared_alias(url.replace("shop", "other").replace("a%20b", "other")) is None
    finally:
        database.clear()
        database.update(before)


def test_a_path_of_sqlite_is_absolute_and_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.setitem(connections["other"].settings_dict, "NAME", "a b?.db")
    assert database_url("other") == f"sqlite:///{FOLDER}/a%20b%3F.db"


def test_the_tasks_of_installed_apps_are_registered() -> None:
    assert app.tasks["tests.contrib.django.tasks.add"] is add
    assert app.queues() == ("default", "mail")


def test_the_configuration_applies() -> None:
    with override_settings(DAYJOB={"URL": "memory://", "CONFIG": BrokerConfig(max_payload=1000)}):
        assert type(app)().config.max_payload == 1000


# manage.py dayjob.


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_is_a_command_of_manage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("dayjob", name, "--help")
    assert f"Usage: dayjob {name}" in capsys.readouterr().out


def test_commands_use_the_store_and_the_app_of_the_site(configured: Configure) -> None:
    configured({"URL": "redis://queue"})
    assert on_site(["jobs", "--json"]) == ["--url", "redis://queue", "jobs", "--json"]
    assert on_site(["dead", "list"]) == ["--url", "redis://queue", "dead", "list"]
    assert on_site(["worker", "-q", "mail"]) == ["worker", APP, "-q", "mail"]
    assert on_site(["demo"]) == ["demo"]
    assert on_site(["--help"]) == ["--help"]


def test_a_backend_that_accepts_every_queue_is_served_on_every_queue() -> None:
    backend = {"BACKEND": "dayjob.contrib.django.DayjobBackend", "QUEUES": []}
    with override_settings(TASKS={"default": backend}):
        assert on_site(["worker"]) == ["worker", APP, "--queues", "*"]
        assert on_site(["worker", "-q", "mail"]) == ["worker", APP, "-q", "mail"]


def test_options_of_manage_are_not_passed_on() -> None:
    given = ["jobs", "--settings", "config.test", "--json", "--pythonpath=x", "--limit", "3"]
    assert _without_django_options(given) == ["jobs", "--json", "--limit", "3"]


def test_a_command_reads_the_sites_store(shared: str, capfd: pytest.CaptureFixture[str]) -> None:
    handle = add.enqueue(1, 2)
    call_command("dayjob", "jobs", "--json")
    assert handle.id in capfd.readouterr().out
    with pytest.raises(CommandError, match="dayjob show 0197 failed"):
        call_command("dayjob", "show", "0197")
