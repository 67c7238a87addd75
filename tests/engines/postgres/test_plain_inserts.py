"""A batch of calls without options is stored by a statement of its own, in the same way as any other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, NewJob
from dayjob.engines.postgres import writes
from dayjob.engines.postgres.rows import plain_columns
from tests.support.observe import check_counters
from tests.support.repeated_writes import new_token

PLAIN = NewJob("q", b"1", "task")


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        yield broker
        await check_counters(broker)


async def test_its_rows_are_those_of_the_general_statement(
    broker: Broker,
    console: psycopg.Connection[tuple[Any, ...]],
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [replace(PLAIN, payload=b"%d" % number) for number in range(3)]
    plain = await broker.enqueue_many(jobs)
    monkeypatch.setattr(writes, "plain_columns", lambda jobs: None)
    general = await broker.enqueue_many(jobs)
    rows = []
    for enqueued in (plain, general):
        assert [each.created for each in enqueued] == [True] * 3
        rows.append(
            console.execute(
                f"SELECT to_jsonb(jobs) - 'id' - 'enqueued_at' - 'run_at', run_at - enqueued_at "
                f"FROM {schema}.jobs WHERE id = ANY (%s::uuid[]) ORDER BY id",
                [[each.id for each in enqueued]],
            ).fetchall()
        )
    assert rows[0] == rows[1]
    assert (await broker.stats("q")).pending == 6


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "r"}, {"task": "other"}, {"priority": 5}, {"max_attempts": 9}, {"headers": {"a": "b"}},
        {"tenant": "t"}, {"dedup_key": "k"}, {"kv": {b"a": b"b"}}, {"delay": 60}, {"expires": 60},
        {"limits": ["api"]}, {"id": "0190a1b2-c3d4-7e5f-8a6b-7c8d9eafb0c1"},
    ],
    ids=str,
)  # fmt: skip
async def test_a_batch_with_another_job_is_not_plain(broker: Broker, options: dict[str, Any]) -> None:
    jobs = broker._validator.insertions([PLAIN, replace(PLAIN, **options)])
    assert plain_columns(jobs[:1]) is not None
    assert plain_columns(jobs) is None


async def test_an_id_that_exists_is_left_out(broker: Broker) -> None:
    one, two, three = broker._validator.insertions([PLAIN] * 3)
    engine = broker._engine
    assert [each.created for each in await engine.insert([one], token=new_token())] == [True]
    assert [each.created for each in await engine.insert([two, one, three], token=new_token())] == [
        True, False, True,
    ]  # fmt: skip
    assert (await broker.stats("q")).pending == 3


async def test_an_old_id_is_found_by_claims_that_skip_dead_entries(
    broker: Broker, console: psycopg.Connection[tuple[Any, ...]], schema: str
) -> None:
    new, old = broker._validator.insertions([PLAIN, PLAIN])
    old.key = bytes.fromhex("0190a1b2c3d47e5f8a6b7c8d9eafb0c1")
    await broker._engine.insert([new, old], token=new_token())
    late = console.execute(f"SELECT late IS NOT NULL FROM {schema}.jobs ORDER BY id").fetchall()
    assert late == [(True,), (False,)]
