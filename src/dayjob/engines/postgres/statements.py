"""The SQL of this engine: one statement per file in ``sql/``, named by its verb.

The files name the schema ``dayjob``; ``Statements`` replaces it, so no statement depends on the
``search_path`` of a session. They name constants, lists of columns and shared parts as ``:NAME``.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from itertools import count

from dayjob.engines import sql
from dayjob.engines.base import ID_RESERVATION
from dayjob.engines.postgres import rows, scan_hints
from dayjob.engines.postgres.settings import LISTENER
from dayjob.model.job import CRASHES, ERRORS_KEPT

_HERE = files("dayjob.engines.postgres")

LAST_TIME = 2**63 - 1
"""A time after all others."""

FULL_NOTIFICATION_QUEUE = 0.9
"""The usage of the notification queue from which on nothing is sent: a full queue would fail the commit.

Other processes find the changes by polling. Reading the usage also frees the part of the queue that all
listeners have read.
"""

_CONSTANTS = {
    "CRASHES": ", ".join(f"'{error}'" for error in sorted(CRASHES)),
    "ERRORS_KEPT": ERRORS_KEPT,
    "FOREVER": rows.FOREVER,
    "ID_RESERVATION": ID_RESERVATION,
    "LAST_TIME": LAST_TIME,
    "LISTENER": f"'{LISTENER}'",
    "NOTIFICATIONS_FIT": f"pg_notification_queue_usage() < {FULL_NOTIFICATION_QUEUE}",
    "CLAIM_COLUMNS": rows.CLAIM_COLUMNS,
    "JOB_COLUMNS": rows.JOB_COLUMNS,
    **rows.INSERT_LISTS,
    **rows.CALL_LISTS,
    "CLOCK": "clock AS MATERIALIZED (SELECT dayjob.now_us($2) AS now)",
    "CLOCK_FIRST": "clock AS MATERIALIZED (SELECT dayjob.now_us($1) AS now)",
    "DEPARTED": "departed AS MATERIALIZED (SELECT array_agg(ROW('running', limits, NULL, NULL)"
    "::dayjob.departure) FILTER (WHERE limits IS NOT NULL) AS jobs FROM ended)",
    "WOKEN": "woken AS MATERIALIZED (SELECT CASE WHEN jobs IS NOT NULL THEN dayjob.leave_limits($2, jobs) "
    "ELSE '{}' END AS topics FROM departed)",
    "STORE": "INSERT INTO dayjob.replies (token, reply) SELECT $1::uuid, reply FROM result",
    "INSERT_CLOCK": f"""clock AS MATERIALIZED (
    SELECT pg_current_xact_id() AS writer, dayjob.now_us($2) AS now, rpad(
        lpad(to_hex((dayjob.now_us(NULL) - {scan_hints.LATE}) / 1000), 12, '0'), 32, '0')::uuid AS late_before
)""",
    "COUNT_CANCELLED": """counted AS (
    INSERT INTO dayjob.counters (queue, pending, scheduled, limited, cancelled)
    SELECT queue, -count(*) FILTER (WHERE state = 'pending'), -count(*) FILTER (WHERE state = 'scheduled'),
        -count(*) FILTER (WHERE state = 'limited'), count(*) FILTER (WHERE retention <> 0)
    FROM found WHERE state <> 'running' GROUP BY queue
),
departed AS MATERIALIZED (
    SELECT array_agg(ROW(state, limits, limited_by, NULL)::dayjob.departure) FILTER (WHERE limits IS NOT NULL)
        AS jobs
    FROM found
    WHERE state <> 'running' AND (SELECT count(*) FROM removed) + (SELECT count(*) FROM saved) > 0
)""",
    "COUNT_MOVED": """counted AS (
    INSERT INTO dayjob.counters (queue, pending, scheduled, limited)
    SELECT queue, count(*) FILTER (WHERE state = 'pending') - count(*) FILTER (WHERE before = 'pending'),
        count(*) FILTER (WHERE state = 'scheduled') - count(*) FILTER (WHERE before = 'scheduled'),
        -count(*) FILTER (WHERE before = 'limited')
    FROM saved GROUP BY queue
)""",
    "COUNT_REMOVED": """counted AS (
    INSERT INTO dayjob.counters (queue, dead, cancelled)
    SELECT queue, -count(*) FILTER (WHERE state = 'dead'), -count(*) FILTER (WHERE state = 'cancelled')
    FROM removed GROUP BY queue
)""",
}
"""The last nine are parts of statements. ``CLOCK``: the time, $2 or that of the server (``CLOCK_FIRST``: $1).
``DEPARTED``: the runs in ``ended`` that leave limits. ``WOKEN``: the topics of the lines that they have
woken. ``STORE``: the reply in ``result``, stored under the token $1. ``COUNT_…``: the counters of the jobs in
``found``, ``saved`` or ``removed``.

``INSERT_CLOCK``: new jobs before an id are late. The transaction gets its number before it reads the clock:
the hints of ``claim_limited`` rely on it. ``COUNT_CANCELLED``: jobs leave their lines before others are
woken, so its ``departed`` reads the changes first.
"""

_FEW = ("scheduled", "running", "limited")
"""The states of ``few_keys.sql``. Each has a statement of its own, since the indexes are of one state."""

_VARIANTS = {"insert": ("insert_skipping", "insert_reserving")}
"""Statements with more lines than their file: those that begin with ``--`` and the last word of the name.

Each also has the lines of the variants before it.
"""

_SCHEMA = re.compile(r"'dayjob\.(\w+)'|\bdayjob\.(?=\w)")
"""In a literal and in the SQL itself, replaced in one pass: the schema's own name may contain the word."""


@cache
def _sources() -> dict[str, str]:
    """Return each statement with the first line of its header, which a server shows while it runs."""
    sources: dict[str, str] = {}
    for file in (_HERE / "sql").iterdir():
        first, *lines = file.read_text("utf-8").splitlines(keepends=True)
        name = file.name.removesuffix(".sql")
        if name == "few_keys":
            sources |= {f"{state}_keys": first + _body(lines, STATE=f"'{state}'") for state in _FEW}
            continue
        sources[name] = first + _body(lines)
        for variant in _VARIANTS.get(name, ()):
            begin = f"--{variant.removeprefix(f'{name}_')} "
            lines = [line.removeprefix(begin) for line in lines]
            sources[variant] = first + _body(lines)
    return sources


def _body(lines: list[str], **constants: str) -> str:
    body = "".join(line for line in lines if not line.startswith("--"))
    return sql.with_constants(body, _CONSTANTS | constants)


def quoted(name: str) -> str:
    """Return the name as an SQL identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


class Statements(dict[str, str]):
    """Every statement by its name, for one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = quoted(schema)
        tags = (f"${'q' * length}$" for length in count())
        self._body_quote = next(tag for tag in tags if tag not in schema)
        """Encloses the text of functions, which names the schema: ``$$`` unless that name contains it."""
        super().__init__((name, self.with_schema(source)) for name, source in _sources().items())

    def with_schema(self, sql: str) -> str:
        """Return the SQL with the name of this schema instead of ``dayjob``."""
        literal = self._schema.replace("'", "''")
        sql = sql.replace("$$", self._body_quote)
        return _SCHEMA.sub(lambda name: f"'{literal}.{name[1]}'" if name[1] else f"{self._schema}.", sql)


def migrations() -> list[tuple[int, str]]:
    return sql.migrations(_HERE)
