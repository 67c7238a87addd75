"""SlateDB on Azure Blob Storage, played by Azurite. Skipped where Azurite is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dayjob import Broker, ConfigError, JobState, NewJob
from tests.engines.slatedb import azurite
from tests.engines.slatedb.azurite import CONTAINER, CREDENTIALS, Azurite
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.roles import hold, try_to_open
from tests.support.arrange import KEEP_ALL, quiet
from tests.support.observe import check_counters, everything
from tests.support.processes import Spawn

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Azurite]:
    command = azurite.find()
    if command is None:
        pytest.skip("Azurite is not installed: npm install -g azurite, or name it in DAYJOB_TEST_AZURITE")
    server = Azurite(command)
    server.make_container()
    yield server
    server.close()


@pytest.fixture
def url(server: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return f"az://{CONTAINER}/{tmp_path.name}?endpoint={server.endpoint}&flush_ms=20"


async def test_jobs_are_stored_in_the_container(url: str) -> None:
    config = quiet(retention=KEEP_ALL)
    async with Broker(url, config=config) as broker:
        await broker.enqueue_many([NewJob("q", b"%d" % number, kv={b"k": b"v"}) for number in range(20)])
        first, second = await broker.claim("q", limit=2)
        await broker.ack(first, result=b"r", enqueue=[NewJob("after")])
        await broker.dead_letter(second, "no good")
        await check_counters(broker)
        before = await everything(broker)
    async with Broker(url, config=config) as broker:
        assert await everything(broker) == before
        assert await broker.kv_get(b"k") == b"v"


async def test_a_take_over_fences_the_owner(url: str, spawn: Spawn) -> None:
    first = await spawn(hold, url)
    id = await first.receive()
    assert "has it open" in await (await spawn(try_to_open, url)).receive()
    async with Broker(f"{url}&takeover=1", config=QUIET) as broker:
        assert await broker.reap() == 1
        first.proceed()
        assert [await first.receive() for _ in range(3)] == ["EngineFenced", "EngineFenced", "done"]
        (job,) = await broker.jobs()
        assert (job.id, job.state) == (id, JobState.PENDING)


async def test_a_missing_container_raises_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="make the container, or correct its name"):
        await Broker(url.replace(CONTAINER, "missing"), config=QUIET).open()
