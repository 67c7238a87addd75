"""Check that a tag names the version of the package, and that a URL is that of its source.

    python tests/release/tag.py v0.1.0 https://example.com/owner/dayjob

The release workflow runs it before it builds anything, with the standard library only.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def problem(tag: str, source: str) -> str | None:
    """Return why a release under this tag from this repository is wrong; None if it is right."""
    [version] = re.findall(r'"(.+)"', (ROOT / "src" / "dayjob" / "_version.py").read_text())
    if tag != f"v{version}":
        return f"the tag is {tag} and the version {version}: tag the commit as v{version}"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    if source != declared:
        return f"this repository is {source}, and pyproject.toml names {declared}: correct [project.urls]"
    return None


if __name__ == "__main__":
    _, given_tag, given_source = sys.argv
    sys.exit(problem(given_tag, given_source))
