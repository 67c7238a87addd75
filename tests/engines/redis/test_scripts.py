"""A script defines at each call only the functions that its verb needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import dayjob.engines.redis
from dayjob import Broker, NewJob
from dayjob.engines.redis.scripts import script
from dayjob.testing import ManualClock
from tests.engines.redis.conftest import QUIET
from tests.support.servers.redis import Server, client

LUA = Path(dayjob.engines.redis.__file__).parent / "lua"
VERBS = sorted(file.stem for file in LUA.glob("*.lua") if file.stem != "insert_plain")


@pytest.mark.parametrize("verb", VERBS)
def test_a_script_defines_only_functions_that_it_refers_to(verb: str) -> None:
    source = script(verb).source.decode()
    for name in re.findall(r"local function (\w+)", source):
        assert len(re.findall(rf"(?<![.\w]){name}\b", source)) > 1, name


@pytest.mark.parametrize("verb", VERBS)
def test_a_script_has_values_in_place_of_constants(verb: str) -> None:
    source = script(verb).source.decode()
    assert not re.search(r"^local [A-Z_, ]+ = ['\d]", source, re.MULTILINE)
    assert not re.search(r"\b(PENDING_STATE|BATCH_BYTES|ERRORS_KEPT|JOBS|NONE)\b", source)


def commands(connection: Any) -> set[str]:
    return {name.removeprefix("cmdstat_") for name in connection.info("commandstats")}


async def test_a_single_plain_job_is_stored_without_the_functions_of_batches(
    server: Server, broker: Broker
) -> None:
    """Only those read records with HMGET, also those of new jobs."""
    with client(server.url) as connection:
        connection.config_resetstat()
        await broker.enqueue("q", b"payload")
        assert "hmget" not in commands(connection)
        await broker.enqueue_many([NewJob("q"), NewJob("q")])
        assert "hmget" in commands(connection)


async def test_a_single_plain_job_is_stored_like_one_of_a_batch(server: Server) -> None:
    async with Broker(server.url, config=QUIET, clock=ManualClock()) as broker:
        job = NewJob("q", b"payload", task="t", headers={"k": "v"}, priority=7, max_attempts=3)
        await broker.enqueue_many([job])
        await broker.enqueue_many([job, job])
    with client(server.url) as connection:
        records = connection.hvals("{dayjob}:jobs")
        members = connection.zrange("{dayjob}:pending", 0, -1)
    assert len({record[: -record[-2] - 1] for record in records}) == 1  # without the salt and its size
    assert len({member[:-16] for member in members}) == 1
    assert len(members) == 3
