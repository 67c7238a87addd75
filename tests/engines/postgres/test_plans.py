"""The query plans of the engine's statements on many jobs: they seek, and never scan or sort.

A statement that is added to ``sql/`` needs its plan here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from dayjob import Broker, BrokerConfig
from dayjob.engines.postgres.listing import newest_first_sql
from dayjob.engines.postgres.statements import Statements
from dayjob.runtime import ids
from tests.engines.postgres.query_plans import (
    JOBS,
    Session,
    Step,
    explain,
    fill,
    indexes_of,
    open_session,
    say_empty,
    sorts_jobs,
    steps,
    whole_reads,
)
from tests.support.servers.postgres import server_url, with_options

BY_ID: Step = ("jobs_pkey", "id")
BY_ORDER: Step = ("jobs_pending", "queue priority turn id")
BY_LINE: Step = ("jobs_lines", "limited_by queue priority turn id")
BY_FINISHED: Step = ("jobs_finished", "state queue id")

PLANS: dict[str, set[Step]] = {
    "ack": {BY_ID},
    "cancel": {BY_ID},
    "claim": {BY_ORDER},
    "conflicts": {("jobs_holders", "queue held_key"), BY_ID},
    "end_claims": {("jobs_leases", "lease_expires_at"), BY_ID},
    "expire": {("jobs_expiries", "expires_at"), BY_ID},
    "finished_keys": {BY_FINISHED},
    "finished_keys_newest_first": {BY_FINISHED},
    "get": {BY_ID},
    "insert": set(),
    "insert_plain": set(),
    "insert_skipping": set(),  # The server looks for conflicts itself.
    "insert_reserving": {BY_ID},
    "became_pending": {("jobs_late", "queue late")},
    "latest_dead": {("jobs_dead", "id")},  # The range (finished_at, id) < (…) counts as its last column.
    "latest_dead_of_queue": {("jobs_dead_of", "queue id")},
    "next_due": {("jobs_due", ""), ("jobs_expiries", "")},
    "overlooked": {BY_ORDER},
    "pending_keys": {BY_ORDER},
    "pending_keys_newest_first": {BY_ORDER},
    "position": {BY_ORDER, BY_LINE, BY_ID},
    "priorities": {("jobs_pending", "queue"), ("jobs_pending", "queue priority turn")},
    "promote": {("jobs_due", "run_at"), BY_ID},
    "lock_holders": {BY_ID},
    "replace_calls": {BY_ID},
    "purge_dead": {BY_ID},
    "quarantine": {BY_ID},
    "record_progress": {BY_ID},
    "renew": {BY_ID},
    "requeue": {BY_ID},
    "reschedule": {BY_ID},
    "set_turns": {BY_ID},
    "settle": {BY_ID},
    "sweep": {("jobs_removals", "remove_at"), BY_ID},
    "sweep_finished": {BY_ID},
}

WALKS: dict[str, set[Step]] = {
    "cancel_requests": {("jobs_flagged", "")},
    "claimed": {("jobs_leases", "")},
    "limit_use": {("jobs_lines", "")},
    "limited_keys": {("jobs_lines", "")},
    "running_keys": {("jobs_leases", "")},
    "scheduled_keys": {("jobs_due", "")},
}
"""These walk an index that holds little more than their result: jobs in one state, or flagged ones."""

SMALL = {
    "await_claim", "bucket_due", "compare_and_set", "count_backlog", "documents", "ended_transactions",
    "fold_counters", "free_ids", "hold_keys", "installation", "kv_get", "kv_write", "listeners", "next_turns",
    "notify", "pause", "paused", "pending_queues", "prune_replies", "remove_idle", "resume", "save_turns",
    "stats", "store_reply", "stored_reply", "transaction_id", "unreserve_ids",
}  # fmt: skip
"""Statements on the small tables: they never read the jobs."""

FUNCTIONS = {"claim_limited", "finish_limits", "set_limit"}
"""Calls of a function that reads the jobs. ``test_limits.py`` measures the blocks that they read."""

OF_CALLERS = {
    "conflicts", "count_backlog", "finish_limits", "hold_keys", "insert", "insert_plain", "insert_reserving",
    "insert_skipping", "lock_holders", "next_turns", "replace_calls", "save_turns", "set_turns",
    "unreserve_ids",
}  # fmt: skip
"""Statements that read tables in a caller's transaction, with the settings of its session."""

READS_WHOLE = {
    "became_pending", "cancel_requests", "claimed", "finished_keys", "fold_counters", "limit_use",
    "limited_keys", "next_due", "paused", "pending_queues", "priorities", "remove_idle", "running_keys",
    "scheduled_keys", "stats",
}  # fmt: skip
"""Statements that read a whole index or table, or one of them in its order up to a limit."""

COMPOSED = {"find"}
"""Completed by the caller; see the listings below."""

EXPECTED = {**PLANS, **WALKS, **{name: set() for name in SMALL | FUNCTIONS}}

LISTINGS = {
    f"{name}_{way}": f"{conditions} AND id {'>' if way == 'up' else '<'} $2 "
    f"ORDER BY id {'' if way == 'up' else 'DESC'} LIMIT $3"
    for name, conditions in {
        "all": "AND $1::text <> ''",
        "of_a_queue": "AND queue = $1",
        "of_a_task": "AND task = $1",
        "of_a_state": "AND state = $1",
    }.items()
    for way in ("up", "down")
}


# Parameters, by the size of the batch.


def some(count: int) -> str:
    """Ids spread over the table."""
    return f"'{{{','.join(f'{1 + number * JOBS // count:032x}' for number in range(count))}}}'"


def each(count: int, value: str) -> str:
    return f"'{{{','.join([value] * count)}}}'"


ID = f"'{1:032x}'"
FIRST, LAST = f"'{'0' * 32}'", f"'{'f' * 32}'"
RETENTION = "'{big}', '{0}', -1"

PARAMETERS: dict[str, Callable[[int], str]] = {
    "ack": lambda n: f"{ID}, NULL, {some(n)}, {some(n)}, {n}, 1, {each(n, 'result')}",
    "await_claim": lambda _: ID,
    "bucket_due": lambda _: "'api'",
    "cancel": lambda n: f"{ID}, NULL, 'channel', 'message', {some(n)}, {RETENTION}",
    "cancel_requests": lambda _: "",
    "claim": lambda n: (
        f"NULL, '{{big,small}}', '{{1,1}}', '{{-1,-1}}', '{{{'0' * 32},{'0' * 32}}}', {n}, 'w', {ID}, "
        f"false, 1000, '{{big,small}}', '{{9,9}}', '{{{'f' * 32},{'f' * 32}}}'"
    ),
    "claimed": lambda n: f"'{{big}}', {some(n)}",
    "claim_limited": lambda n: f"NULL, '{{big}}', '{{1}}', {n}, 'w', {ID}, 1000, 1000, 100, 0, 0, 1000",
    "compare_and_set": lambda n: ", ".join(
        [ID, "NULL", "'channel'", "NULL", each(n, "k"), each(n, "n"), each(n, "v"), each(n, "w")]
    ),
    "conflicts": lambda n: f"{some(n)}, {each(n, 'big')}, {each(n, 'key')}, {some(n)}, NULL",
    "count_backlog": lambda _: "NULL, '{big}', true",
    "documents": lambda _: "NULL, 'kind 1'",
    "end_claims": lambda n: f"{ID}, NULL, {n}, {RETENTION}, 'error', NULL, NULL",
    "ended_transactions": lambda _: "'{1}'",
    "expire": lambda n: f"{ID}, NULL, {n}, {RETENTION}, 'error'",
    "finish_limits": lambda n: f"NULL, '{{}}', {some(n)}, true",
    "finished_keys": lambda n: f"'dead', NULL, {FIRST}, NULL, {n}",
    "finished_keys_newest_first": lambda n: f"'dead', '{{big}}', {LAST}, NULL, {n}",
    "fold_counters": lambda n: str(n),
    "get": some,
    "insert": lambda n: ", ".join(
        [
            ID, "NULL", "'channel'", "NULL", "false", str(n), some(n), each(n, "big"), each(n, "task"),
            each(n, "payload"), each(n, "1"), each(n, "3"), each(n, "claimed"), each(n, "true"),
            each(n, "0"), each(n, "NULL"), each(n, "NULL"), each(n, "NULL"), each(n, "0"), each(n, "NULL"),
            each(n, "NULL"), each(n, "key"), each(n, "NULL"), each(n, "NULL"),
        ]
    ),
    "insert_plain": lambda n: (
        f"{ID}, NULL, 'channel', NULL, {n}, {some(n)}, {each(n, 'payload')}, 'big', 'task', 1, 3"
    ),
    "insert_skipping": lambda n: PARAMETERS["insert"](n),
    "insert_reserving": lambda n: PARAMETERS["insert"](n),
    "free_ids": lambda n: f"NULL, {n}",
    "hold_keys": lambda n: f"NULL, {some(n)}, {some(n)}, {each(n, '60')}",
    "installation": lambda _: "",
    "kv_get": lambda n: each(n, "k"),
    "kv_write": lambda n: f"{ID}, {each(n, 'k')}, {each(n, 'v')}",
    "became_pending": lambda n: f"'{{big,small}}', '{{NULL,1:5:3}}', {n}",
    "latest_dead": lambda n: f"5, {LAST}, {n}",
    "latest_dead_of_queue": lambda n: f"5, {LAST}, {n}, 'big'",
    "limit_use": lambda _: "",
    "limited_keys": lambda n: f"NULL, {ID}, false, {n}",
    "listeners": lambda _: "",
    "lock_holders": lambda n: f"{some(n)}, {each(n, 'key')}",
    "next_due": lambda _: "NULL",
    "next_turns": lambda n: f"{each(n, 'big')}, {each(n, 'tenant')}",
    "overlooked": lambda n: f"'{{big,small}}', '{{1000,100}}', {some(2)}, {n}",
    "notify": lambda _: "'channel', '{message}'",
    "pause": lambda _: f"{ID}, 'big'",
    "paused": lambda _: "",
    "pending_keys": lambda n: f"{each(n, 'big')}, {each(n, '1000')}, {each(n, '0')}, {FIRST}, NULL, {n}",
    "pending_keys_newest_first": lambda n: (
        f"{each(n, 'big')}, {each(n, '1000')}, {each(n, '0')}, {LAST}, NULL, {n}"
    ),
    "pending_queues": lambda _: "",
    "position": lambda n: f"{ID}, {n}",
    "priorities": lambda n: f"NULL, {n}",
    "promote": lambda n: f"{ID}, NULL, {n}",
    "prune_replies": lambda n: f"1, {n}, 0",
    "purge_dead": lambda n: f"{ID}, {some(n)}",
    "quarantine": lambda n: f"NULL, {ID}, {some(n)}, {each(n, 'error')}",
    "record_progress": lambda n: f"{ID}, {some(n)}, {some(n)}, {each(n, 'null')}",
    "remove_idle": lambda n: f"NULL, {n}",
    "renew": lambda n: f"NULL, {some(n)}, {some(n)}, {each(n, '30')}",
    "replace_calls": lambda n: ", ".join(
        ["NULL", some(n), *(each(n, value) for value in ("1", "1", "1", "task", "payload", '"{}"', "t"))]
    ),
    "requeue": lambda n: f"{ID}, NULL, {some(n)}",
    "reschedule": lambda n: f"{ID}, NULL, {some(n)}, {each(n, '1')}, {each(n, '1')}",
    "resume": lambda _: f"{ID}, 'big', 'channel', 'message'",
    "running_keys": lambda n: f"NULL, NULL, true, {n}",
    "save_turns": lambda n: f"{each(n, 'big')}, {each(n, 'tenant')}, {each(n, '1')}",
    "scheduled_keys": lambda n: f"'big', {ID}, false, {n}",
    "set_limit": lambda _: f"{ID}, NULL, 'api', NULL",
    "set_turns": lambda n: f"{some(n)}, {each(n, '1')}",
    "settle": lambda n: ", ".join(
        [
            ID, "NULL", some(n), some(n), each(n, "ack"), each(n, "NULL"), each(n, "0"), each(n, "result"),
            each(n, "NULL"), each(n, "0"), each(n, "-1"), each(n, "0"), each(n, "NULL"), each(n, "1"),
            each(n, "NULL"),
        ]
    ),
    "stats": lambda _: "",
    "store_reply": lambda _: f"{ID}, '{{reply}}'",
    "stored_reply": lambda _: ID,
    "sweep": lambda n: f"{ID}, NULL, {n}, 0",
    "sweep_finished": lambda n: f"{ID}, NULL, {some(n)}, 'dead', 1, 'cursor'",
    "transaction_id": lambda _: "",
    "unreserve_ids": some,
    "all_up": lambda n: f"'big', {FIRST}, {n}",
    "all_down": lambda n: f"'big', {LAST}, {n}",
    "of_a_queue_up": lambda n: f"'big', {FIRST}, {n}",
    "of_a_queue_down": lambda n: f"'big', {LAST}, {n}",
    "of_a_task_up": lambda n: f"'task 1', {FIRST}, {n}",
    "of_a_task_down": lambda n: f"'task 1', {LAST}, {n}",
    "of_a_state_up": lambda n: f"'pending', {FIRST}, {n}",
    "of_a_state_down": lambda n: f"'pending', {LAST}, {n}",
}  # fmt: skip

Plan = tuple[set[Step], bool]
"""The ways in which it reads the jobs, and whether it sorts them."""


REVERSED = "_newest_first"


def sql_of(statements: Statements, name: str) -> str:
    """Return the statement of this name, in the other direction if the name ends so."""
    sql = statements[name.removesuffix(REVERSED)]
    return newest_first_sql(sql) if name.endswith(REVERSED) else sql


def prepared(statements: Statements, *, as_the_engine: bool) -> Session:
    """A session with every statement prepared under its name."""
    session = open_session(as_the_engine=as_the_engine)
    for name in EXPECTED:
        session.execute(f"PREPARE {name} AS {sql_of(statements, name)}")
    for name, conditions in LISTINGS.items():
        session.execute(f"PREPARE {name} AS {statements['find']} {conditions}")
    return session


def plans(session: Session, count: int) -> dict[str, Plan]:
    """Return the plan of every statement for a batch of that size."""
    found = {name: explain(session, name, of(count)) for name, of in PARAMETERS.items()}
    return {name: (steps(plan), sorts_jobs(plan)) for name, plan in found.items()}


def check(found: dict[str, Plan]) -> None:
    shown = {name: by for name, (by, _) in found.items() if name in EXPECTED}
    assert shown == EXPECTED
    assert {name for name, (_, sorts) in found.items() if sorts and name in PLANS} == set()


@dataclass
class ManyJobs:
    schema: str
    statements: Statements
    early: dict[str, Plan]
    """The plans that were cached while the table was empty."""


@pytest.fixture(scope="module")
def many_jobs() -> Iterator[ManyJobs]:
    """A schema with a hundred thousand jobs in all states, and their statistics."""
    schema = f"test_plans_{ids.new_key().hex()}"

    async def create() -> None:
        async with Broker(with_options(server_url(), schema=schema), config=BrokerConfig(duties=False)):
            """The tables exist."""

    asyncio.run(create())
    statements = Statements(schema)
    with closing(open_session(as_the_engine=False)) as console:
        try:
            # Statistics by autovacuum would invalidate the early plans.
            console.execute(statements.with_schema("ALTER TABLE dayjob.jobs SET (autovacuum_enabled = off)"))
            with closing(prepared(statements, as_the_engine=True)) as early:
                early.execute("SET plan_cache_mode = force_generic_plan")
                plans(early, 1)
                fill(console, statements)
                planned_early = plans(early, 100)
            console.execute(
                statements.with_schema(
                    "ANALYZE dayjob.jobs, dayjob.counters, dayjob.replies, dayjob.kv, dayjob.documents"
                )
            )
            yield ManyJobs(schema, statements, planned_early)
        finally:
            console.execute(f"DROP SCHEMA {schema} CASCADE")


def test_every_statement_has_its_plan() -> None:
    assert set(Statements("dayjob")) == {name.removesuffix(REVERSED) for name in {*EXPECTED, *COMPOSED}}
    assert PARAMETERS.keys() == {*EXPECTED, *LISTINGS}


@pytest.mark.parametrize("name", sorted({*EXPECTED, *COMPOSED}))
def test_the_first_line_of_a_statement_describes_it(name: str) -> None:
    """A server shows the first 1,024 bytes of a running statement."""
    words, statement = sql_of(Statements("dayjob"), name).split("\n", 1)
    assert words.startswith("-- ")
    assert not statement.startswith("--")


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("as_the_engine", [True, False], ids=["as the engine", "server's defaults"])
def test_every_statement_uses_its_index(many_jobs: ManyJobs, as_the_engine: bool, mode: str) -> None:
    """With the server's defaults, batches are smaller: a scan may be cheaper for many jobs."""
    with closing(prepared(many_jobs.statements, as_the_engine=as_the_engine)) as session:
        session.execute(f"SET plan_cache_mode = {mode}")
        for count in (1, 100, 1000) if as_the_engine else (1, 100):
            found = plans(session, count)
            check(found)
            assert {name: found[name] for name in LISTINGS} == dict.fromkeys(LISTINGS, ({BY_ID}, False))


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_every_statement_uses_its_index_if_the_statistics_say_that_all_tables_are_empty(
    many_jobs: ManyJobs, mode: str
) -> None:
    """A vacuum writes so if nearly all rows that it saw were dead. A scan of the table then seems cheap."""
    with closing(prepared(many_jobs.statements, as_the_engine=True)) as session:
        session.execute(f"SET plan_cache_mode = {mode}")
        session.execute("BEGIN")
        say_empty(session, many_jobs.schema)
        for count in (1, 100, 1000):
            check(plans(session, count))
            whole = {
                name.removesuffix(REVERSED)
                for name, of in PARAMETERS.items()
                if whole_reads(explain(session, name, of(count)))
            }
            assert whole == READS_WHOLE


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_callers_session_reads_no_whole_table_if_the_statistics_say_that_all_are_empty(
    many_jobs: ManyJobs, mode: str
) -> None:
    with closing(prepared(many_jobs.statements, as_the_engine=False)) as session:
        session.execute(f"SET plan_cache_mode = {mode}")
        session.execute("BEGIN")
        say_empty(session, many_jobs.schema)
        for count in (1, 100):
            found = {name: by for name, (by, _) in plans(session, count).items()}
            assert {name: found[name] for name in OF_CALLERS} == {name: EXPECTED[name] for name in OF_CALLERS}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("as_empty", [False, True], ids=["true statistics", "statistics of empty tables"])
def test_documents_are_found_by_their_primary_key(many_jobs: ManyJobs, as_empty: bool, mode: str) -> None:
    with closing(prepared(many_jobs.statements, as_the_engine=True)) as session:
        session.execute(f"SET plan_cache_mode = {mode}")
        session.execute("BEGIN")
        if as_empty:
            say_empty(session, many_jobs.schema)
        for count in (1, 100, 1000):
            for name in ("documents", "compare_and_set"):
                plan = explain(session, name, PARAMETERS[name](count))
                assert indexes_of(plan, "documents") == {"documents_pkey"}, name
                assert whole_reads(plan) == set(), name


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_old_replies_are_found_by_their_time(many_jobs: ManyJobs, mode: str) -> None:
    with closing(prepared(many_jobs.statements, as_the_engine=True)) as session:
        session.execute(f"SET plan_cache_mode = {mode}")
        plan = explain(session, "prune_replies", PARAMETERS["prune_replies"](100))
        assert indexes_of(plan, "replies") == {"replies_stored_at", "replies_pkey"}


def test_plans_cached_for_an_empty_table_do_not_scan_a_full_one(many_jobs: ManyJobs) -> None:
    check(many_jobs.early)
    assert all(("", "") not in by for by, _ in many_jobs.early.values())
