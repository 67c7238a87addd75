"""The Python versions in pyproject.toml and those that ``make test-all`` tests are the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLASSIFIED = [
    text.rpartition(" ")[2]
    for text in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
]


def test_the_classifiers_are_the_tested_versions() -> None:
    found = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    assert [name.removeprefix("python") for name in found[1].split()] == CLASSIFIED


def test_the_oldest_version_is_the_required_one() -> None:
    assert PROJECT["requires-python"] == f">={CLASSIFIED[0]}"
