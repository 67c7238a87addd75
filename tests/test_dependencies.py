"""The lower bounds of the dependencies exclude versions with known advisories.

``make check`` runs this, without any service. ``make audit`` asks an online database about the installed
versions.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

FIXED = {
    "django": {"5.2.8": "CVE-2025-64458, CVE-2025-64459", "5.2.9": "CVE-2025-13372, CVE-2025-64460"},
    "h11": {"0.16.0": "CVE-2025-43859"},
    "hiredis": {"2.1.0": "CVE-2021-32765"},
    "jinja2": {
        "3.1.3": "CVE-2024-22195",
        "3.1.4": "CVE-2024-34064",
        "3.1.5": "CVE-2024-56201, CVE-2024-56326",
        "3.1.6": "CVE-2025-27516",
    },
    "redis": {"4.5.5": "CVE-2023-28858, CVE-2023-28859"},
    "starlette": {"0.40.0": "CVE-2024-47874", "0.47.2": "CVE-2025-54121", "0.49.1": "CVE-2025-62727"},
    "uvicorn": {"0.11.7": "CVE-2020-7694, CVE-2020-7695"},
}
"""The first version without each advisory, of every dependency that has or had one."""

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())


def declared() -> list[Requirement]:
    """Return the requirements of the package and its extras, and those of the tests for the same packages."""
    project = PROJECT["project"]
    texts = [
        *project["dependencies"],
        *(text for each in project["optional-dependencies"].values() for text in each),
    ]
    names = {Requirement(text).name for text in texts}
    texts += [text for text in PROJECT["dependency-groups"]["dev"] if Requirement(text).name in names]
    requirements = [found for text in texts if (found := Requirement(text)).name != "dayjob"]
    return [found for found in requirements if found.marker is None or found.marker.evaluate()]


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_no_allowed_version_has_a_known_advisory(requirement: Requirement) -> None:
    [bound] = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
    for fixed, advisories in FIXED.get(requirement.name, {}).items():
        assert bound >= Version(fixed), f"{requirement} allows versions with {advisories}"
    assert Version(version(requirement.name)) >= bound


def test_each_advisory_is_of_a_dependency() -> None:
    assert FIXED.keys() <= {requirement.name for requirement in declared()}
