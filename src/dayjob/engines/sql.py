"""The SQL files of an engine: constants in its statements, and its numbered migrations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable

_CONSTANT = re.compile(r"(?<!:):([A-Z_]+)\b")


def with_constants(sql: str, constants: Mapping[str, object]) -> str:
    """Return the SQL with the constants instead of their names, which are written ``:NAME``."""
    return _CONSTANT.sub(lambda constant: str(constants[constant[1]]), sql)


def migrations(package: Traversable) -> list[tuple[int, str]]:
    """Return the numbered scripts that create the layout, in order."""
    scripts = [entry for entry in (package / "migrations").iterdir() if entry.name.endswith(".sql")]
    return sorted((int(script.name.removesuffix(".sql")), script.read_text("utf-8")) for script in scripts)
