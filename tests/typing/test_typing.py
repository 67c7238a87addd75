"""mypy and pyright accept right calls of the public API and reject each wrong one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bound import BOUND

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RIGHT, WRONG = HERE / "right_calls.py", HERE / "wrong_calls.py"

Errors = dict[str, dict[int, str]]
"""The lines with errors and their messages, by file name."""


def output(directory: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=directory, capture_output=True, text=True, timeout=BOUND
    )
    assert done.stdout, done.stderr
    return done.stdout


def mypy(scratch: Path) -> Errors:
    config = scratch / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\nmypy_path = " + str(ROOT / "src") + "\n")
    found: Errors = {}
    text = output(
        ROOT, "mypy", f"--config-file={config}", f"--cache-dir={ROOT / '.mypy_cache' / 'user'}",
        "--output=json", str(RIGHT), str(WRONG),
    )  # fmt: skip
    for line in text.splitlines():
        if line.startswith("{") and (error := json.loads(line))["severity"] == "error":
            found.setdefault(Path(error["file"]).name, {})[error["line"]] = error["message"]
    return found


def pyright(scratch: Path) -> Errors:
    config = scratch / "pyrightconfig.json"
    settings = {
        "include": [str(RIGHT), str(WRONG)],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "reportUnusedFunction": False,
        "reportUnusedCoroutine": False,
        "reportUnusedCallResult": False,
    }
    config.write_text(json.dumps(settings))
    report = json.loads(output(ROOT, "basedpyright", "--project", str(config), "--outputjson"))
    found: Errors = {}
    for error in report["generalDiagnostics"]:
        if error["severity"] == "error":
            line = error["range"]["start"]["line"] + 1
            found.setdefault(Path(error["file"]).name, {})[line] = error["message"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, pyright], ids=lambda check: check.__name__)
def test_right_calls_pass_and_each_wrong_one_is_an_error(
    check: Callable[[Path], Errors], tmp_path: Path
) -> None:
    errors = check(tmp_path)
    assert errors.get(RIGHT.name, {}) == {}
    expected = {
        number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if line.endswith("# wrong")
    }
    found = errors.get(WRONG.name, {})
    assert sorted(expected - found.keys()) == [], "these lines should be errors"
    assert {line: text for line, text in found.items() if line not in expected} == {}
