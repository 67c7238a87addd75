"""The metadata, the release workflow, and the rules of ``make release-check``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from dayjob import __version__
from tests.release import __main__ as release
from tests.release.imports import missing, modules
from tests.release.tag import problem

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]


def test_the_urls_are_those_of_one_repository() -> None:
    assert {"Source", "Documentation", "Changelog", "Issues"} <= PROJECT["urls"].keys()
    assert all(url.startswith(SOURCE) for url in PROJECT["urls"].values())
    for url in PROJECT["urls"].values():
        file = url.partition("/blob/main/")[2]
        assert not file or (ROOT / file).exists(), url


def test_the_workflow_fits_its_schema() -> None:
    checked = CliRunner().invoke(
        check_jsonschema, ["--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    )
    assert checked.exit_code == 0, checked.output


def test_the_workflow_publishes_checked_files_without_a_token() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    commands = [step.get("run", "").strip() for step in jobs["build"]["steps"]]
    assert commands.index("make release-check") > commands.index("make test")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"test", "release-check"} <= set(targets)
    publish = jobs["publish"]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert "secrets." not in WORKFLOW.read_text()
    sbom = str(release.SBOM.relative_to(ROOT))
    assert WORKFLOW.read_text().count(sbom) == 2


def test_a_release_has_the_tag_of_the_version_and_comes_from_the_source_of_the_metadata() -> None:
    tag = f"v{__version__}"
    assert problem(tag, SOURCE) is None
    assert "tag the commit as" in str(problem("v99", SOURCE))
    assert "correct [project.urls]" in str(problem(tag, "https://example.com/another/dayjob"))


def test_the_extras_are_those_of_the_metadata() -> None:
    extras = PROJECT["optional-dependencies"]
    assert ("", *extras, ",".join(extras)) == release.INSTALLED


def test_every_module_is_imported_and_a_missing_package_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    found = modules()
    assert {"dayjob", "dayjob.cli.worker.command", "dayjob.engines.postgres.engine"} <= set(found)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import no_such_package.part")
    assert missing(["dayjob.metrics", "needs_more"]) == {"needs_more": "no_such_package"}
    (tmp_path / "misspelt.py").write_text("import dayjob.no_such_module")
    with pytest.raises(ModuleNotFoundError):
        missing(["misspelt"])


def test_a_module_that_no_extra_can_import_is_found_unless_it_needs_two() -> None:
    extras = {"dashboard": ["starlette>=0.49", "jinja2>=3.1.6"], "metrics": ["prometheus-client>=0.20"]}
    required = release.packages_of(extras)
    assert required == {"starlette", "jinja2", "prometheus_client"}
    without = {"web": "starlette", "metrics": "prometheus_client"}
    missing = {"": without, "dashboard": {"metrics": "prometheus_client"}, "metrics": {"web": "starlette"}}
    assert release.unreachable(missing, required) == {}
    missing["dashboard"] = {"web": "prometheus_client", "metrics": "prometheus_client"}
    assert release.unreachable(missing, required) == {}, "web needs both"
    missing["dashboard"] = {"web": "jinja2", "metrics": "prometheus_client"}
    assert release.unreachable(missing, required - {"jinja2"}) == {
        "web": "starlette with no extra, jinja2 with dashboard, starlette with metrics"
    }
