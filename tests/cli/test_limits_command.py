"""``dayjob limits``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dayjob.cli import main


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["limits", *arguments, url])


def test_a_limit_is_set_listed_and_removed(url: str) -> None:
    assert run(url, "set", "api", "--running", "3").output == "Limit api set.\n"
    assert run(url, "set", "queue:email", "--rate", "100", "--per", "60", "--burst", "5").exit_code == 0
    found = json.loads(run(url, "list", "--json").output)
    assert [(each["name"], each["at_once"], each["rate"], each["per"], each["burst"]) for each in found] == [
        ("api", 3, None, 1.0, 1),
        ("queue:email", None, 100, 60.0, 5),
    ]
    shown = run(url).output
    assert "100 per 60 s" in shown
    assert run(url, "remove", "api").output == "Limit api removed.\n"
    again = run(url, "remove", "api")
    assert (again.exit_code, again.output) == (1, "There is no limit api.\n")


def test_a_limit_without_a_bound_is_refused(url: str) -> None:
    result = run(url, "set", "api")
    assert result.exit_code == 2
    assert "limits nothing" in result.output
