"""The functions on full tables whose statistics say that they are empty.

A vacuum writes so if nearly all rows that it saw were dead, as those of a queue whose jobs are removed as
fast as they come. The next jobs are then claimed and settled by the plans for a single row. ``test_plans.py``
has the plans of the statements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from dayjob import Broker, BrokerConfig
from dayjob.engines.postgres.statements import Statements
from dayjob.runtime import ids
from tests.engines.postgres.query_plans import Session, blocks, open_session, say_empty
from tests.support.servers.postgres import server_url, with_options

MANY = 30_000

FILL = f"""
INSERT INTO dayjob.jobs (
    id, queue, state, task, payload, priority, max_attempts, enqueued_at, run_at, dedup_until, limits,
    limited_by
)
SELECT lpad(to_hex(n), 32, '0')::uuid, 'q', state, 'task', 'payload', 1000, 3, n, n, 'claimed',
    jsonb_build_array(jsonb_build_array(line, 1), jsonb_build_array('key ' || n, 1)),
    CASE state WHEN 'limited' THEN line END
FROM (
    SELECT n,
        CASE WHEN n <= 3 OR n > 2 * {MANY} THEN 'busy' WHEN n <= {MANY} THEN 'line ' || n
            ELSE 'api' END AS line,
        CASE WHEN n <= {MANY} THEN 'limited' WHEN n <= 2 * {MANY} THEN 'pending' ELSE 'running' END AS state
    FROM generate_series(1, 2 * {MANY} + 3) AS n
) AS numbered;
INSERT INTO dayjob.buckets (name, running, due)
    SELECT 'line ' || n, 1, CASE WHEN n <= 7 THEN n END FROM generate_series(4, {MANY}) AS n;
INSERT INTO dayjob.buckets (name, running)
    SELECT 'key ' || 2 * {MANY} + n, 1 FROM generate_series(1, 3) AS n;
INSERT INTO dayjob.buckets (name, running) VALUES ('api', 1), ('busy', 3);
INSERT INTO dayjob.tenant_turns (queue, tenant, turn)
    SELECT 'q', 'tenant ' || n, n FROM generate_series(1, {MANY}) AS n;
INSERT INTO dayjob.limited_queues (queue) VALUES ('q');
INSERT INTO dayjob.documents (kind, name, written_at, value)
    VALUES ('limit', 'api', 1, '{{"running": 1000}}'), ('limit', 'busy', 1, '{{"running": 1}}');
"""
"""Lines of limited jobs, then pending ones, and three that run. Each line has a bucket, and a few are due."""

TABLES = ("jobs", "buckets", "tenant_turns", "documents")

PENDING = ", ".join(f"'{MANY + n:032x}'" for n in (1, 2, 3))
RUNNING = ", ".join(f"'{2 * MANY + n:032x}'" for n in (1, 2, 3))

CALLS = {
    "claim": "SELECT count(*) FROM dayjob.claim_limited("
    "NULL, '{q}', '{30000000}', 20, 'w', gen_random_uuid(), 100000, 1000, 100, 500000, 10000000, 1000)",
    "leave": "SELECT dayjob.leave_limits("
    "NULL, array_agg(ROW('running', limits, NULL, NULL)::dayjob.departure)) "
    f"FROM dayjob.jobs WHERE id IN ({RUNNING})",
    "finish": f"SELECT dayjob.finish_limits(NULL, '{{}}', ARRAY[{PENDING}]::uuid[], true)",
    "wake": "SELECT dayjob.wake_due(5, 10)",
    "set_limit": "SELECT dayjob.set_limit(NULL, 'busy', '{\"running\": 5}')",
    "turns": "SELECT dayjob.next_turns('{q,q,q}', '{tenant 1,tenant 20000,tenant 3}')",
    "room": "SELECT dayjob.count_waiting(NULL, '{q}', true)",
}


@pytest.fixture(scope="module")
def schema() -> Iterator[str]:
    """The name of a schema with full tables, without autovacuum."""
    name = f"test_stale_{ids.new_key().hex()}"

    async def create() -> None:
        async with Broker(with_options(server_url(), schema=name), config=BrokerConfig(duties=False)):
            """The tables exist."""

    asyncio.run(create())
    with closing(open_session(as_the_engine=False)) as session:
        try:
            for table in TABLES:
                session.execute(f"ALTER TABLE {name}.{table} SET (autovacuum_enabled = off)")
            session.execute(Statements(name).with_schema(FILL))
            yield name
        finally:
            session.execute(f"DROP SCHEMA {name} CASCADE")


def measured(schema: str, *, as_the_engine: bool) -> dict[str, int]:
    """Return the blocks that each call reads, in a new session."""
    with closing(open_session(as_the_engine=as_the_engine)) as session:
        return {
            name: blocks(session, Statements(schema).with_schema(call))
            for name, call in CALLS.items()
            if as_the_engine or name != "claim"  # A claim is never a part of a caller's transaction.
        }


@pytest.mark.parametrize("as_the_engine", [True, False], ids=["as the engine", "server's defaults"])
def test_functions_read_as_little_as_with_true_statistics(schema: str, as_the_engine: bool) -> None:
    with closing(open_session(as_the_engine=False)) as session:
        session.execute(f"ANALYZE {', '.join(f'{schema}.{table}' for table in TABLES)}")
        usual = measured(schema, as_the_engine=as_the_engine)
        say_empty(session, schema)
        stale = measured(schema, as_the_engine=as_the_engine)
    assert {name: read for name, read in stale.items() if read > usual[name] + 30} == {}, usual


def test_a_claim_that_passes_locked_jobs_reads_little(schema: str) -> None:
    def claim(session: Session) -> int:
        return blocks(session, Statements(schema).with_schema(CALLS["claim"]))

    with closing(open_session(as_the_engine=False)) as session:
        session.execute(f"ANALYZE {schema}.jobs, {schema}.buckets")
        with closing(open_session(as_the_engine=False)) as other:
            other.execute("BEGIN")
            other.execute(f"SELECT FROM {schema}.jobs WHERE id IN ({PENDING}) FOR UPDATE")
            with closing(open_session(as_the_engine=True)) as usual:
                before = claim(usual)
            say_empty(session, schema)
            with closing(open_session(as_the_engine=True)) as stale:
                after = claim(stale)
    assert after <= before + 30, before
