"""The SQL of this engine: one statement per file in ``sql/``, named by its verb."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_HERE = files("dayjob.engines.sqlite")


@cache
def statement(name: str) -> str:
    return (_HERE / "sql" / f"{name}.sql").read_text("utf-8")


def migrations() -> list[tuple[int, str]]:
    """The numbered scripts that build the layout, in order."""
    scripts = [entry for entry in (_HERE / "migrations").iterdir() if entry.name.endswith(".sql")]
    return sorted((int(script.name.removesuffix(".sql")), script.read_text("utf-8")) for script in scripts)
