"""Every Python example in the docs is a program that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bound import BOUND

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "quickstart", "tasks", "patterns", "worker", "recurring", "broker", "broker-quickstart", "engines",
    "object-storage", "observability", "security", "testing",
)  # fmt: skip
"""The pages whose examples need no server and no further file."""


def examples() -> list[tuple[str, str]]:
    """Return each program with its page and heading."""
    found = []
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text()
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            if not block[1].startswith("# conftest.py"):
                heading = re.findall(r"^#+ (.*)$", text[: block.start()], re.MULTILINE)[-1]
                found.append((f"{page}: {heading}", block[1]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "program"), [pytest.param(*each, id=each[0]) for each in examples()])
def test_the_example_runs(heading: str, program: str, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    unexpected = [line for line in done.stderr.splitlines() if not line.startswith("Job ")]
    assert (done.returncode, unexpected) == (0, []), heading  # A worker logs the jobs that fail.
    print(done.stdout)
