"""The examples for web frameworks in the docs run: their files, their tests, and their worker command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bound import BOUND

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
    assert " passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_the_example_of_a_session_enqueues_in_its_transaction(tmp_path: Path) -> None:
    write_files("SQLAlchemy", tmp_path)
    assert run(tmp_path, "-W", "error", "orders.py").split() == ["None", "pending"]
    run(tmp_path, "-m", "dayjob", "worker", "orders:jobs", "--burst")
    assert "done" in run(tmp_path, "-m", "dayjob", "jobs", "sqlite:///shop.db")
