"""Opening an unusable URL or storage raises ConfigError and leaves the storage unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, ConfigError
from dayjob.engines.registry import without_password
from tests.support.engines import ENGINES, EngineUnderTest
from tests.support.waiting import with_timeout

UNUSABLE = [(engine, reason) for engine in ENGINES for reason in engine.unusable]


def contents(directory: Path) -> dict[str, bytes | None]:
    """Return every file and folder under the directory, with the contents of the files."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize(
    ("engine", "reason"), UNUSABLE, ids=[f"{engine}-{reason}" for engine, reason in UNUSABLE]
)
async def test_an_unusable_storage_is_refused(engine: EngineUnderTest, reason: str, tmp_path: Path) -> None:
    url = engine.unusable[reason](tmp_path)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            await with_timeout(Broker(url, config=BrokerConfig(duties=False)).open())
        assert without_password(url) in str(caught.value)
        assert isinstance(caught.value, ValueError)
    assert contents(tmp_path) == before
    engine.after(tmp_path)


@pytest.mark.parametrize(
    "url", ["", "jobs.db", "nosuch://x", "sqlite", "sqlite:", "://", "http://[", "memory:x", None, 5]
)
async def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        await with_timeout(Broker(url).open())


async def test_a_bad_configuration_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="config"):
        Broker(url, config={"duties": False})  # type: ignore[arg-type]
