"""A mutation: one place of the source, broken on purpose, and the tests that should notice first."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src/dayjob")

ENGINES = ("memory", "sqlite", "postgres", "redis", "slatedb")
BROKER = "broker"
"""In place of an engine: broker, duties and worker, which all engines share."""


class Mutation(Struct, frozen=True):
    """``old`` occurs once in the file of the package, whose path may be a pattern. ``new`` replaces it.

    ``tests`` are the cheapest tests that should fail, under ``tests/``, separated by spaces. Of those with an
    engine as parameter, only the tests of the mutation's engine run.
    """

    name: str
    engines: tuple[str, ...]
    path: str
    old: str
    new: str
    tests: str

    def file(self, root: Path) -> Path:
        [found] = (root / PACKAGE).glob(self.path)
        return found

    def occurrences(self, root: Path = ROOT) -> int:
        return self.file(root).read_text("utf-8").count(self.old)

    def apply(self, root: Path) -> None:
        """Change the file below the root, which is a copy of the repository."""
        found = self.occurrences(root)
        if found != 1:
            raise SystemExit(f"{self.name}: {self.path} has its text {found} times, not once: {self.old!r}")
        file = self.file(root)
        file.write_text(file.read_text("utf-8").replace(self.old, self.new), "utf-8")
