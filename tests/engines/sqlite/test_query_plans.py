"""The query plans on a file with many jobs: every statement seeks by an index, and none scans or sorts.

A statement that is added to ``sql/`` needs its plan here.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from importlib.resources import files
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, Job, JobState
from dayjob.engines.base import JobQuery
from dayjob.engines.sqlite.statements import statement
from dayjob.engines.sqlite.store import Owner, SqliteStore
from dayjob.engines.store import run_now
from dayjob.runtime.process import this_process

JOBS = 100_000

BY_ID = ("SEARCH", "PRIMARY KEY", {"id"})

Step = tuple[str, str, set[str]]
"""How a step finds the jobs, the index, and the columns that it seeks by."""

PLANS: dict[str, list[Step]] = {
    "candidates": [("SEARCH", "dayjob_pending", {"queue_id"})],
    "claim": [BY_ID],
    "load": [BY_ID],
    "tasks": [BY_ID],
    "fence": [BY_ID],
    "save": [BY_ID],
    "remove": [BY_ID],
    "save_lease": [BY_ID],
    "save_progress": [BY_ID],
    "exists": [BY_ID],
    "holder": [("SEARCH", "dayjob_holders", {"expr", "held_key"})],
    "enqueued_at": [BY_ID],
    "replace_call": [BY_ID],
    "has_lines": [("SEARCH", "dayjob_lines", {"limited_by"})],
    "line": [("SEARCH", "dayjob_lines", {"limited_by", "queue_id", "priority", "turn", "id"})],
    "line_queues": [
        ("SEARCH", "dayjob_lines", {"limited_by"}),
        ("SEARCH", "dayjob_lines", {"limited_by", "queue_id"}),
    ],
    "due": [("SEARCH", "dayjob_due", {"run_at"})],
    "expired": [("SEARCH", "dayjob_expiries", {"expires_at"})],
    "lapsed": [("SEARCH", "dayjob_leases", {"lease_expires_at"})],
    "removable": [("SEARCH", "dayjob_removals", {"remove_at"})],
    "finished_keys": [("SEARCH", "dayjob_finished", {"state", "queue_id", "id"})],
    "pending_keys": [("SEARCH", "dayjob_pending", {"queue_id", "priority", "turn", "id"})],
    "next_priority": [("SEARCH", "dayjob_pending", {"queue_id", "priority", "turn"})],
    "next_due": [("SEARCH", "dayjob_due", {"run_at"}), ("SEARCH", "dayjob_expiries", {"expires_at"})],
    # These scan a small index: that of the running jobs, or of those with a cancel request.
    "cancel_requests": [("SCAN", "dayjob_flagged", set())],
    "claims_of": [("SCAN", "dayjob_leases", set())],
    "orphans": [("SCAN", "dayjob_leases", set())],
    "remove_owner": [("SCAN", "dayjob_leases", set())],
    "owners": [("SCAN", "dayjob_leases", set())],
}

SMALL = {
    "add_owner", "add_queue", "bucket", "count", "count_limited", "document", "documents", "due_buckets",
    "is_paused", "kv_delete", "kv_get", "kv_put", "limit_values", "next_turn", "pause", "paused", "queue",
    "queue_name", "remove_bucket", "remove_document", "remove_idle_buckets", "remove_past_turns",
    "reserve_id", "save_bucket", "save_queue_turn", "save_turn", "stats", "backlog", "write_document",
}  # fmt: skip
"""Statements on the small tables only."""

RESERVATIONS: dict[str, list[Step]] = {
    "reserved_ids": [BY_ID],
    "ended_reservations": [("SEARCH", "dayjob_reservations", {"reserved_until"})],
    "free_ids": [BY_ID],
    "window": [BY_ID],
}
"""Statements on the reservations of ids."""

INSERTS = {"insert"}
SORTED = {"limit_use", "lines_of"}
"""Statements that read the limited jobs only, and group or sort the names of their buckets."""

JOINED = {"position"}
"""Statements that read the jobs twice, by different indexes."""

COMPOSED = {"find"}
"""Statements that the caller composes; see the listings below."""


STATISTICS = {
    "true": "",
    "none": "DELETE FROM sqlite_stat1",
    "of one job": "UPDATE sqlite_stat1 SET stat = '1 1 1 1 1 1'",
}
"""How the statistics of the file are changed. dayjob collects none, but another program may, at any time."""


@pytest.fixture(scope="module", params=STATISTICS)
def connection(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[sqlite3.Connection]:
    """A file with a hundred thousand jobs in all states."""
    path = tmp_path_factory.mktemp("plans") / "jobs.db"

    async def create() -> None:
        async with Broker(f"sqlite:///{path}", config=BrokerConfig(duties=False)) as broker:
            for name in ("big", "small", "empty"):
                await broker.pause(name)

    asyncio.run(create())
    connection = sqlite3.connect(path)
    connection.execute(
        """
        WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < ? - 1),
        mixed AS (
            SELECT
                n,
                CASE WHEN n % 100 < 40 THEN 'pending' WHEN n % 100 < 50 THEN 'scheduled'
                    WHEN n % 100 < 52 THEN 'running' WHEN n % 100 < 85 THEN 'done'
                    WHEN n % 100 < 95 THEN 'dead' ELSE 'cancelled' END AS state
            FROM numbers
        )
        INSERT INTO dayjob_jobs (
            id, queue_id, state, priority, max_attempts, enqueued_at, run_at, claimed_at, lease_expires_at,
            finished_at, expires_at, remove_at, cancel_requested, held_key, dedup_key, dedup_until, owner,
            task, payload
        )
        SELECT
            CAST(printf('%016d', n) AS BLOB), CASE WHEN n % 10 = 0 THEN 2 ELSE 1 END, state,
            CASE n % 3 WHEN 0 THEN 100 ELSE 1000 END, 3, n, n,
            iif(state = 'running', n, NULL), iif(state = 'running', n + 30, NULL),
            iif(state IN ('done', 'dead', 'cancelled'), n, NULL),
            iif(n % 7 = 0, n + 5, NULL), iif(state IN ('done', 'cancelled'), n + 60, NULL),
            state = 'running' AND n % 5 = 0,
            iif(state = 'pending' AND n % 4 = 0, 'key ' || n, NULL), iif(n % 4 = 0, 'key ' || n, NULL),
            'claimed', n % 3, 'task ' || (n % 9), zeroblob(50)
        FROM mixed
        """,
        (JOBS,),
    )
    for state in ("pending", "scheduled", "running", "done", "dead", "cancelled"):
        connection.execute(
            f"""
            UPDATE dayjob_queues SET {state} = (
                SELECT count(*) FROM dayjob_jobs WHERE queue_id = dayjob_queues.id AND state = '{state}'
            )
            """
        )
    connection.execute("ANALYZE")
    assert connection.execute("SELECT count(*) FROM sqlite_stat1").fetchone()[0] > 5
    connection.execute(STATISTICS[request.param])
    connection.commit()
    connection.execute("ANALYZE sqlite_schema")  # Reads them anew.
    yield connection
    connection.close()


_STEP = re.compile(
    r"(?P<way>SEARCH|SCAN) (?P<table>\w+)"
    r"(?: USING (?:COVERING )?(?:INDEX (?P<index>\w+)|(?:INTEGER )?(?P<key>PRIMARY KEY)))?"
    r"(?: \((?P<columns>.*)\))?"
)


def plan(connection: sqlite3.Connection, sql: str, table: str = "dayjob_jobs") -> list[Step]:
    """Return the steps of the query plan on the table. The plan does not depend on the parameters."""
    parameters = [0] * sql.count("?")
    details = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    assert not any("TEMP B-TREE" in detail for detail in details), details
    steps = [found for detail in details if (found := _STEP.match(detail)) and found["table"] == table]
    return [
        (
            step["way"],
            step["index"] or step["key"] or "",
            set(re.findall(r"\w+(?=[=<>,)])", step["columns"] or "")),
        )
        for step in steps
    ]


def test_every_statement_has_its_plan() -> None:
    folder = files("dayjob.engines.sqlite") / "sql"
    found = {entry.name.removesuffix(".sql") for entry in folder.iterdir()}
    assert found == {*PLANS, *SMALL, *RESERVATIONS, *INSERTS, *SORTED, *JOINED, *COMPOSED}


def test_no_statement_has_numbered_placeholders() -> None:
    """Python 3.12 warns if a sequence is bound to ``?1``, and 3.14 refuses it."""
    for entry in (files("dayjob.engines.sqlite") / "sql").iterdir():
        assert not re.search(r"\?\d", entry.read_text()), entry.name


def test_the_file_is_big_and_mixed(connection: sqlite3.Connection) -> None:
    counts = dict(connection.execute("SELECT state, count(*) FROM dayjob_jobs GROUP BY state").fetchall())
    assert sum(counts.values()) == JOBS
    assert len(counts) == 6


@pytest.mark.parametrize("name", PLANS)
def test_jobs_are_found_by_the_intended_index(connection: sqlite3.Connection, name: str) -> None:
    for width in (1, 500):
        for beyond, order in ((">", ""), ("<", "DESC")):
            sql = statement(name).format(keys=", ".join("?" * width), beyond=beyond, order=order)
            assert plan(connection, sql) == PLANS[name]


@pytest.mark.parametrize("name", sorted(SMALL))
def test_statements_on_the_small_tables_do_not_read_the_jobs(
    connection: sqlite3.Connection, name: str
) -> None:
    assert plan(connection, statement(name)) == []


@pytest.mark.parametrize("name", RESERVATIONS)
def test_reservations_are_found_by_the_intended_index(connection: sqlite3.Connection, name: str) -> None:
    sql = statement(name).replace("{keys}", "?, ?")
    assert plan(connection, sql, "dayjob_reserved_ids") == RESERVATIONS[name]


def test_the_position_of_a_job_seeks_to_the_head_of_its_queue(connection: sqlite3.Connection) -> None:
    assert plan(connection, statement("position"), "job") == [BY_ID] * 2
    assert plan(connection, statement("position"), "first") == [
        ("SEARCH", "dayjob_pending", {"queue_id", "priority"}),
        ("SEARCH", "dayjob_lines", {"limited_by", "queue_id", "priority"}),
    ]


@pytest.mark.parametrize(
    ("name", "columns"),
    [("documents", {"kind"}), ("document", {"kind", "name"}), ("remove_document", {"kind", "name"})],
)
def test_documents_are_found_by_kind_and_name(
    connection: sqlite3.Connection, name: str, columns: set[str]
) -> None:
    index = "sqlite_autoindex_dayjob_documents_1"
    assert plan(connection, statement(name), "dayjob_documents") == [("SEARCH", index, columns)]


def test_a_full_record_is_found_by_its_id(connection: sqlite3.Connection) -> None:
    sql = statement("find").format(index="", conditions="job.id = ?", order="")
    assert plan(connection, sql, "job") == [BY_ID]


def steps_of(
    connection: sqlite3.Connection, listing: Callable[[SqliteStore], Coroutine[Any, Any, list[Job]]]
) -> list[list[Step]]:
    """Return the plans of the statements that a listing executes on the jobs."""
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    try:
        found = run_now(listing(SqliteStore(connection, Owner(this_process()))))
    finally:
        connection.set_trace_callback(None)
    assert found
    return [plan(connection, sql, "job") for sql in statements if " AS job " in sql]


CURSOR = b"%016d" % (JOBS // 2)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("after", [None, CURSOR])
@pytest.mark.parametrize(
    "listing",
    [
        JobQuery(5),
        JobQuery(5, queue="small"),
        JobQuery(5, task="task 1"),
        JobQuery(5, queue="big", task="task 1"),
        JobQuery(5, state=JobState.PENDING, task="task 1"),
        JobQuery(5, queue="big", state=JobState.PENDING, task="task 1"),
        JobQuery(50_001, queue="big", state=JobState.PENDING),
    ],
)
def test_a_listing_scans_the_ids_in_order_without_a_sort(
    connection: sqlite3.Connection, listing: JobQuery, after: bytes | None, newest_first: bool
) -> None:
    listing = replace(listing, after=after, newest_first=newest_first)
    walk = ("SCAN", "", set()) if after is None else BY_ID
    assert steps_of(connection, lambda store: store.find(listing)) == [[walk]]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("after", [None, CURSOR])
@pytest.mark.parametrize("queue", [None, "big"])
@pytest.mark.parametrize("state", ["pending", "done", "dead", "cancelled"])
def test_a_listing_of_a_state_reads_only_the_records_of_its_page(
    connection: sqlite3.Connection, state: str, queue: str | None, after: bytes | None, newest_first: bool
) -> None:
    listing = JobQuery(5, queue, JobState(state), None, after, newest_first)
    assert steps_of(connection, lambda store: store.find(listing)) == [[BY_ID]] * 5


@pytest.mark.parametrize("before", [None, (JOBS // 2, CURSOR)])
def test_the_latest_failures_are_at_the_end_of_their_indexes(
    connection: sqlite3.Connection, before: tuple[int, bytes] | None
) -> None:
    assert steps_of(connection, lambda store: store.find_dead(None, before, 5)) == [
        [("SEARCH", "dayjob_deaths", {"finished_at", "id"})]
    ]
    assert steps_of(connection, lambda store: store.find_dead("small", before, 5)) == [
        [("SEARCH", "dayjob_deaths_of_queue", {"queue_id", "finished_at", "id"})]
    ]
