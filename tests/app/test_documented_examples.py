"""Every example in docs/tasks.md, docs/recurring.md and docs/object-storage.md is a program that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = [
    Path(__file__).parents[2] / "docs" / name for name in ("tasks.md", "recurring.md", "object-storage.md")
]


def examples() -> list[tuple[str, str]]:
    """Return each program with its heading."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            heading = re.findall(r"^#+ (.*)$", text[: block.start()], re.MULTILINE)[-1]
            found.append((heading, block[1]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "program"), [pytest.param(*each, id=each[0]) for each in examples()])
def test_the_example_runs(heading: str, program: str, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), heading
    print(done.stdout)
