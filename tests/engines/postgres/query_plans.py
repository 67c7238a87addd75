"""A schema with many jobs in mixed states, the query plans of statements, and the blocks that they read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg

from dayjob.engines.postgres import database
from dayjob.engines.postgres.statements import Statements
from tests.support.servers.postgres import server_url

JOBS = 100_000

Session = psycopg.Connection[tuple[Any, ...]]

Node = dict[str, Any]
"""A node of a query plan."""

FILL = f"""
INSERT INTO dayjob.jobs (
    id, queue, state, task, payload, priority, max_attempts, attempts, epoch, enqueued_at, run_at, claimed_at,
    lease_expires_at, finished_at, expires_at, remove_at, cancel_requested, claim, dedup_key, held_key,
    dedup_until, late, limited_by
)
SELECT
    lpad(to_hex(n), 32, '0')::uuid,
    CASE WHEN n % 1000 = 0 THEN 'rare' WHEN n % 10 = 0 THEN 'small' ELSE 'big' END,
    state, 'task ' || n % 9, 'payload', CASE WHEN n % 3 = 0 THEN 100 ELSE 1000 END, 3,
    (state NOT IN ('pending', 'scheduled'))::int, (state NOT IN ('pending', 'scheduled'))::int, n, n,
    CASE WHEN state NOT IN ('pending', 'scheduled', 'limited') THEN n END,
    CASE WHEN state = 'running' THEN n + 30 END,
    CASE WHEN state IN ('done', 'dead', 'cancelled') THEN n END,
    CASE WHEN n % 7 = 0 THEN 5000000000000000 + n END,
    CASE WHEN state IN ('done', 'cancelled') THEN n + 60 END,
    state = 'running' AND n % 5 = 0,
    CASE WHEN state = 'running' THEN lpad(to_hex(n / 100), 32, '0')::uuid END,
    CASE WHEN n % 4 = 0 THEN 'key ' || n END,
    CASE WHEN n % 4 = 0 AND state IN ('pending', 'scheduled') THEN 'key ' || n END,
    'claimed', CASE WHEN n % 50 = 0 THEN n::text::xid8 END,
    CASE WHEN state = 'limited' THEN 'bucket ' || n % 5 END
FROM (
    SELECT n, CASE WHEN part < 40 THEN 'pending' WHEN part < 50 THEN 'scheduled' WHEN part < 52 THEN 'running'
        WHEN part < 85 THEN 'done' WHEN part < 93 THEN 'dead' WHEN part < 95 THEN 'limited'
        ELSE 'cancelled' END AS state
    FROM generate_series(1, {JOBS}) AS n, LATERAL (SELECT n * 37 % 101 AS part) AS mixed
) AS mixed;
"""

FILL_THE_REST = """
INSERT INTO dayjob.counters (queue, pending)
    SELECT (ARRAY['big', 'small', 'rare'])[n % 3 + 1], 1 FROM generate_series(1, 1000) AS n;
INSERT INTO dayjob.replies (token, stored_at) SELECT gen_random_uuid(), n FROM generate_series(1, 5000) AS n;
INSERT INTO dayjob.kv SELECT int4send(n), 'value' FROM generate_series(1, 5000) AS n;
INSERT INTO dayjob.pauses VALUES ('paused');
INSERT INTO dayjob.documents
    SELECT 'kind ' || n % 3, 'name ' || n, n, 'value' FROM generate_series(1, 5000) AS n;
"""


Step = tuple[str, str]
"""The index that reads the jobs, and the columns that it seeks by; "" is a sequential scan."""


def open_session(*, as_the_engine: bool) -> Session:
    """A session with the engine's settings, or with the server's defaults, as a caller's connection has."""
    session = psycopg.connect(server_url(), autocommit=True, prepare_threshold=None)
    if as_the_engine:
        for name, value in database.SESSION_SETTINGS.items():
            session.execute(f"SET {name} = '{value}'")
    return session


def fill(session: Session, statements: Statements) -> None:
    session.execute(statements.with_schema(FILL))
    session.execute(statements.with_schema(FILL_THE_REST))


def explain(session: Session, prepared: str, parameters: str) -> Node:
    """Return the plan of a prepared statement, with parameters in SQL."""
    execute = f"EXECUTE {prepared} ({parameters})" if parameters else f"EXECUTE {prepared}"
    found = session.execute(f"EXPLAIN (FORMAT JSON) {execute}").fetchone()
    assert found is not None
    plan: Node = found[0][0]["Plan"]
    return plan


def say_empty(session: Session, schema: str) -> None:
    """Make the statistics say that no table has rows, as a vacuum does that sees hardly any live ones."""
    session.execute(
        "UPDATE pg_class SET reltuples = 0 "
        f"WHERE relnamespace = '{schema}'::regnamespace AND relkind IN ('r', 'i')"
    )


def blocks(session: Session, sql: str) -> int:
    """Return the blocks of shared buffers that a statement reads: the least of five runs, each rolled back.

    Some runs read more: the first one plans, and so does one after an autovacuum has changed the table's
    statistics.
    """
    return min(_blocks_once(session, sql) for _ in range(5))


def _blocks_once(session: Session, sql: str) -> int:
    session.execute("BEGIN")
    found = session.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}").fetchone()
    session.execute("ROLLBACK")
    assert found is not None
    plan = found[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def steps(plan: Node) -> set[Step]:
    """Return the ways in which a plan reads the jobs."""
    found: set[Step] = set()
    for node in _nodes(plan):
        index = node.get("Index Name", "")
        if index.startswith("jobs_"):
            columns = dict.fromkeys(_COLUMN.findall(node.get("Index Cond", "")))
            found.add((index, " ".join(columns)))
        elif node.get("Relation Name") == "jobs" and "Seq Scan" in node["Node Type"]:
            found.add(("", ""))
    return found


_COLUMN = re.compile(
    r"\b(?:queue|priority|turn|id|state|limited_by|held_key|late|run_at|lease_expires_at|expires_at|remove_at)\b"
)


def indexes_of(plan: Node, table: str) -> set[str]:
    """Return the indexes by which a plan reads a table; "" is a sequential scan."""
    scanned = any(
        node.get("Relation Name") == table and "Seq Scan" in node["Node Type"] for node in _nodes(plan)
    )
    indexes = {node["Index Name"] for node in _nodes(plan) if "Index Name" in node}
    return {name for name in indexes if name.startswith(f"{table}_")} | ({""} if scanned else set())


def whole_reads(plan: Node) -> set[str]:
    """Return the indexes and tables that a plan reads from one end."""
    indexes = {
        node["Index Name"] for node in _nodes(plan) if "Index Name" in node and "Index Cond" not in node
    }
    return indexes | {node["Relation Name"] for node in _nodes(plan) if "Seq Scan" in node["Node Type"]}


def sorts_jobs(plan: Node) -> bool:
    """Whether a plan sorts rows of the jobs table without a limit below."""
    return any("Sort" in node["Node Type"] and _reads_jobs(node) for node in _nodes(plan))


def _reads_jobs(node: Node) -> bool:
    if node["Node Type"] == "Limit":
        return False
    inputs = [part for part in node.get("Plans", ()) if part["Parent Relationship"] in ("Outer", "Inner")]
    return node.get("Relation Name") == "jobs" or any(map(_reads_jobs, inputs))


def _nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
