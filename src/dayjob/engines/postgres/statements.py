"""The SQL of this engine: one statement per file in ``sql/``, named by its verb.

The files say ``dayjob.jobs`` and the like; ``Statements`` puts the schema's own name in that place, so no
statement depends on a session's ``search_path``.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_HERE = files("dayjob.engines.postgres")

_NAMED = re.compile(r"'dayjob\.(\w+)'|\bdayjob\.(?=\w)")
"""In a literal and in the SQL itself; in one go, as the schema's own name may hold the word."""


@cache
def source(name: str) -> str:
    """The statement, with the line that says what it does: a server shows the beginning of what it runs."""
    first, *lines = (_HERE / "sql" / f"{name}.sql").read_text("utf-8").splitlines(keepends=True)
    return first + "".join(line for line in lines if not line.startswith("--"))


def quoted(name: str) -> str:
    """The name as an SQL identifier."""
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
            found = self._known[name] = self.placed(source(name))
        return found

    def placed(self, sql: str) -> str:
        """The SQL with this schema's name instead of ``dayjob``."""
        literal = self._schema.replace("'", "''")
        return _NAMED.sub(lambda name: f"'{literal}.{name[1]}'" if name[1] else f"{self._schema}.", sql)


def migrations() -> list[tuple[int, str]]:
    """The numbered scripts that build the layout, in order."""
    scripts = [entry for entry in (_HERE / "migrations").iterdir() if entry.name.endswith(".sql")]
    return sorted((int(script.name.removesuffix(".sql")), script.read_text("utf-8")) for script in scripts)
