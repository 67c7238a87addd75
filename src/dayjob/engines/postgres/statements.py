"""The SQL of this engine: one statement per file in ``sql/``, named by its verb.

The files name the schema ``dayjob``; ``Statements`` replaces it, so no statement depends on the
``search_path`` of a session. They name Python constants as ``:NAME``.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from dayjob.model.job import ERRORS_KEPT

_HERE = files("dayjob.engines.postgres")

FOREVER = -1
"""Retention without end; 0 is not at all."""

LAST_TIME = 2**63 - 1
"""A time after all others."""

_CONSTANTS = {"ERRORS_KEPT": ERRORS_KEPT, "FOREVER": FOREVER, "LAST_TIME": LAST_TIME}

_CONSTANT = re.compile(r"(?<!:):([A-Z_]+)\b")

_SCHEMA = re.compile(r"'dayjob\.(\w+)'|\bdayjob\.(?=\w)")
"""In a literal and in the SQL itself, replaced in one pass: the schema's own name may contain the word."""


@cache
def source(name: str) -> str:
    """Return the statement with the first line of its header, which a server shows while it runs."""
    first, *lines = (_HERE / "sql" / f"{name}.sql").read_text("utf-8").splitlines(keepends=True)
    body = "".join(line for line in lines if not line.startswith("--"))
    return first + _CONSTANT.sub(lambda constant: str(_CONSTANTS[constant[1]]), body)


def quoted(name: str) -> str:
    """Return the name as an SQL identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


class Statements:
    """Every statement, for one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = quoted(schema)
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self.with_schema(source(name))
        return found

    def with_schema(self, sql: str) -> str:
        """Return the SQL with the name of this schema instead of ``dayjob``."""
        literal = self._schema.replace("'", "''")
        return _SCHEMA.sub(lambda name: f"'{literal}.{name[1]}'" if name[1] else f"{self._schema}.", sql)


def migrations() -> list[tuple[int, str]]:
    """Return the numbered scripts that create the layout, in order."""
    scripts = [entry for entry in (_HERE / "migrations").iterdir() if entry.name.endswith(".sql")]
    return sorted((int(script.name.removesuffix(".sql")), script.read_text("utf-8")) for script in scripts)
