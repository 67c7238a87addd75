"""How the server runs the engine's statements on a schema with many jobs: it seeks, and never walks or sorts.

A statement that is added to ``sql/`` must be given its plan here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files

import pytest

from dayjob import Broker, BrokerConfig
from dayjob.engines.postgres.statements import Statements
from dayjob.runtime import ids
from tests.engines.postgres.crowd import (
    JOBS,
    Session,
    Step,
    explain,
    fill,
    open_session,
    sorts_jobs,
    steps,
    ways_to,
)
from tests.support.servers.postgres import server_url, with_options

BY_ID: Step = ("jobs_pkey", "id")
BY_FINISHED: Step = ("jobs_finished", "state queue id")

PLANS: dict[str, set[Step]] = {
    "ahead": {("jobs_pending", "queue priority id"), BY_ID},
    "cancel": {BY_ID},
    "claim": {("jobs_pending", "queue priority id"), BY_ID},
    "expire": {("jobs_expiries", "expires_at"), BY_ID},
    "finished_keys": {BY_FINISHED},
    "finished_keys_newest_first": {BY_FINISHED},
    "get": {BY_ID},
    "insert": set(),  # The server looks for what is in the way by itself.
    "latest_dead": {("jobs_dead", "id")},  # The range (finished_at, id) < (…) counts as its last column.
    "latest_dead_of": {("jobs_dead_of", "queue id")},
    "next_due": {("jobs_due", ""), ("jobs_expiries", "")},
    "pending_keys": {("jobs_pending", "queue priority id")},
    "pending_keys_newest_first": {("jobs_pending", "queue priority id")},
    "promote": {("jobs_due", "run_at"), BY_ID},
    "purge_dead": {BY_ID},
    "reap": {("jobs_leases", "lease_expires_at"), BY_ID},
    "refused": {("jobs_holders", "queue held_key"), BY_ID},
    "renew": {BY_ID},
    "report": {BY_ID},
    "requeue": {BY_ID},
    "reschedule": {BY_ID},
    "runs": {("jobs_pending", "queue"), ("jobs_pending", "queue priority")},
    "set_aside": {BY_ID},
    "settle": {BY_ID},
    "succeed": {BY_ID},
    "sweep": {("jobs_removals", "remove_at"), BY_ID},
    "sweep_finished": {BY_ID},
}

WALKS: dict[str, set[Step]] = {
    "cancel_requests": {("jobs_flagged", "")},
    "claimed": {("jobs_leases", "")},
    "reclaim": {("jobs_leases", ""), BY_ID},
    "running_keys": {("jobs_leases", "")},
    "scheduled_keys": {("jobs_due", "")},
}
"""These walk an index that holds little more than what they want: the flagged, running or scheduled jobs."""

SMALL = {
    "answered", "await_claim", "fold", "installation", "kv_delete", "kv_get", "kv_put", "note", "notes",
    "notify", "pause", "paused", "prune", "resume", "stats", "write_notes",
}  # fmt: skip
"""Statements on the small tables: they never touch the jobs."""

COMPOSED = {"find"}
"""Put together by the caller; see the listings below."""

EXPECTED = {**PLANS, **WALKS, **{name: set() for name in SMALL}}

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


# Parameters, for a batch of so many.


def some(count: int) -> str:
    """Ids all over the table."""
    return f"'{{{','.join(f'{1 + place * JOBS // count:032x}' for place in range(count))}}}'"


def each(count: int, value: str) -> str:
    return f"'{{{','.join([value] * count)}}}'"


ID = f"'{1:032x}'"
FIRST, LAST = f"'{'0' * 32}'", f"'{'f' * 32}'"
KEEPS = "'{big}', '{0}', -1"

PARAMETERS: dict[str, Callable[[int], str]] = {
    "ahead": lambda n: f"{ID}, {n}",
    "answered": lambda _: ID,
    "await_claim": lambda _: ID,
    "cancel": lambda n: f"{ID}, NULL, 'channel', 'news', {some(n)}, {KEEPS}",
    "cancel_requests": lambda _: "",
    "claim": lambda n: (
        f"NULL, '{{big,small}}', '{{1,1}}', '{{-1,-1}}', '{{{'0' * 32},{'0' * 32}}}', {n}, 'w', {ID}, false"
    ),
    "claimed": lambda n: f"'{{big}}', {some(n)}",
    "expire": lambda n: f"NULL, {n}, {KEEPS}, 'reason'",
    "finished_keys": lambda n: f"'dead', NULL, {FIRST}, NULL, {n}",
    "finished_keys_newest_first": lambda n: f"'dead', '{{big}}', {LAST}, NULL, {n}",
    "fold": lambda n: str(n),
    "get": some,
    "insert": lambda n: ", ".join(
        [
            "NULL", ID, "'channel'", "NULL", some(n), each(n, "big"), each(n, "task"), each(n, "payload"),
            each(n, "1"), each(n, "3"), each(n, "NULL"), each(n, "NULL"), each(n, "NULL"), each(n, "0"),
            each(n, "NULL"), each(n, "NULL"), each(n, "key"), each(n, "claimed"),
        ]
    ),
    "installation": lambda _: "",
    "kv_delete": lambda n: each(n, "k"),
    "kv_get": lambda n: each(n, "k"),
    "kv_put": lambda n: f"{each(n, 'k')}, {each(n, 'v')}",
    "latest_dead": lambda n: f"5, {LAST}, {n}",
    "latest_dead_of": lambda n: f"5, {LAST}, {n}, 'big'",
    "next_due": lambda _: "NULL",
    "note": lambda _: f"{ID}, '{{answer}}'",
    "notes": lambda _: "NULL, 'kind 1'",
    "notify": lambda _: "'channel', 'news'",
    "pause": lambda _: "'big'",
    "paused": lambda _: "",
    "pending_keys": lambda n: f"{each(n, 'big')}, {each(n, '1000')}, {FIRST}, NULL, {n}",
    "pending_keys_newest_first": lambda n: f"{each(n, 'big')}, {each(n, '1000')}, {LAST}, NULL, {n}",
    "promote": lambda n: f"NULL, {n}",
    "prune": lambda n: f"1, {n}",
    "purge_dead": lambda n: f"{ID}, {some(n)}",
    "reap": lambda n: f"NULL, {n}, {KEEPS}, 'reason'",
    "reclaim": lambda n: f"NULL, {n}, {KEEPS}, 'reason', {each(n, 'w')}",
    "refused": lambda n: f"{some(n)}, {each(n, 'big')}, {each(n, 'key')}",
    "renew": lambda n: f"NULL, {some(n)}, {each(n, '1')}, {each(n, '30')}",
    "report": lambda n: f"{some(n)}, {each(n, '1')}, {each(n, 'null')}",
    "requeue": lambda n: f"{ID}, NULL, {some(n)}",
    "reschedule": lambda n: f"{ID}, NULL, {some(n)}, {each(n, '1')}, {each(n, '1')}",
    "resume": lambda _: "'big', 'channel', 'news'",
    "running_keys": lambda n: f"NULL, NULL, true, {n}",
    "runs": lambda n: f"NULL, {n}",
    "scheduled_keys": lambda n: f"'big', {ID}, false, {n}",
    "set_aside": lambda n: f"NULL, {some(n)}, {each(n, '1')}, {each(n, 'error')}",
    "settle": lambda n: ", ".join(
        [
            "NULL", ID, some(n), each(n, "1"), each(n, "ack"), each(n, "NULL"), each(n, "0"),
            each(n, "result"), each(n, "NULL"), each(n, "0"), each(n, "-1"), each(n, "0"),
        ]
    ),
    "stats": lambda _: "",
    "succeed": lambda n: f"{ID}, {some(n)}, {each(n, '1')}, {n}",
    "sweep": lambda n: f"NULL, {n}",
    "sweep_finished": lambda n: f"NULL, {some(n)}, 'dead', 1",
    "write_notes": lambda n: ", ".join(
        ["NULL", ID, "'channel'", "NULL", each(n, "k"), each(n, "n"), each(n, "v"), each(n, "w")]
    ),
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
"""How it gets at the jobs, and whether it sorts them."""


def prepared(statements: Statements, *, as_the_engine: bool) -> Session:
    """A session in which every statement is prepared, under its name."""
    session = open_session(as_the_engine=as_the_engine)
    for name in EXPECTED:
        session.execute(f"PREPARE {name} AS {statements[name]}")
    for name, conditions in LISTINGS.items():
        session.execute(f"PREPARE {name} AS {statements['find']} {conditions}")
    return session


def plans(session: Session, count: int) -> dict[str, Plan]:
    """The plan of every statement for a batch of that many."""
    found = {name: explain(session, name, of(count)) for name, of in PARAMETERS.items()}
    return {name: (steps(plan), sorts_jobs(plan)) for name, plan in found.items()}


def check(found: dict[str, Plan]) -> None:
    shown = {name: by for name, (by, _) in found.items() if name in EXPECTED}
    assert shown == EXPECTED
    assert {name for name, (_, sorts) in found.items() if sorts and name in PLANS} == set()


@dataclass
class Crowd:
    statements: Statements
    early: dict[str, Plan]
    """Plans that were made and kept while there was not one job, as they are now."""


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    """A schema with a hundred thousand jobs in all states, and the statistics of them."""
    schema = f"test_plans_{ids.new_key().hex()}"

    async def create() -> None:
        async with Broker(with_options(server_url(), schema=schema), config=BrokerConfig(duties=False)):
            """The tables are there."""

    asyncio.run(create())
    statements = Statements(schema)
    with closing(open_session(as_the_engine=False)) as console:
        try:
            # Nobody else is to gather statistics: whoever planned early would plan again.
            console.execute(statements.placed("ALTER TABLE dayjob.jobs SET (autovacuum_enabled = off)"))
            with closing(prepared(statements, as_the_engine=True)) as early:
                early.execute("SET plan_cache_mode = force_generic_plan")
                plans(early, 1)
                fill(console, statements)
                planned_early = plans(early, 100)
            console.execute(
                statements.placed(
                    "ANALYZE dayjob.jobs, dayjob.counts, dayjob.batches, dayjob.kv, dayjob.notes"
                )
            )
            yield Crowd(statements, planned_early)
        finally:
            console.execute(f"DROP SCHEMA {schema} CASCADE")


def test_every_statement_has_its_plan() -> None:
    folder = files("dayjob.engines.postgres") / "sql"
    found = {entry.name.removesuffix(".sql") for entry in folder.iterdir()}
    assert found == {*EXPECTED, *COMPOSED}
    assert PARAMETERS.keys() == {*EXPECTED, *LISTINGS}


@pytest.mark.parametrize("name", sorted({*EXPECTED, *COMPOSED}))
def test_what_a_server_shows_of_a_statement_tells_what_it_does(name: str) -> None:
    """It shows the first 1,024 bytes: one line of words, and then the statement."""
    words, statement = Statements("dayjob")[name].split("\n", 1)
    assert words.startswith("-- ")
    assert not statement.startswith("--")


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("as_the_engine", [True, False], ids=["as the engine", "server's defaults"])
def test_jobs_are_found_by_the_index_meant_for_it(crowd: Crowd, as_the_engine: bool, mode: str) -> None:
    """With the server's defaults, it may take a walk for cheaper than a batch that is a part of the table."""
    with closing(prepared(crowd.statements, as_the_engine=as_the_engine)) as session:
        session.execute(f"SET plan_cache_mode = {mode}")
        for count in (1, 100, 1000) if as_the_engine else (1, 100):
            found = plans(session, count)
            check(found)
            assert {name: found[name] for name in LISTINGS} == dict.fromkeys(LISTINGS, ({BY_ID}, False))


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_notes_are_found_by_their_names(crowd: Crowd, mode: str) -> None:
    with closing(prepared(crowd.statements, as_the_engine=True)) as session:
        session.execute(f"SET plan_cache_mode = {mode}")
        for count in (1, 100):
            for name in ("notes", "write_notes"):
                plan = explain(session, name, PARAMETERS[name](count))
                assert ways_to(plan, "notes") == {"notes_pkey"}, name


def test_what_was_planned_for_an_empty_table_does_not_walk_a_full_one(crowd: Crowd) -> None:
    check(crowd.early)
    assert all(("", "") not in by for by, _ in crowd.early.values())
