"""How the file is opened: write-ahead logging, and durable commits by default."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, ConfigError
from dayjob.engines.registry import create_engine
from dayjob.runtime.clock import SYSTEM
from tests.engines.sqlite.threads import on_reader, on_writer

NORMAL, FULL = 1, 2


@pytest.mark.parametrize(
    ("options", "synchronous"),
    [
        ("", FULL),
        ("?synchronous=full", FULL),
        ("?synchronous=normal", NORMAL),
        ("?synchronous=NORMAL", NORMAL),
    ],
)
async def test_commits_are_durable_by_default(url: str, options: str, synchronous: int) -> None:
    async with Broker(url + options, config=BrokerConfig(duties=False)) as broker:
        assert await on_writer(broker, "PRAGMA synchronous") == [(synchronous,)]


async def test_the_journal_is_a_write_ahead_log(broker: Broker) -> None:
    assert await on_writer(broker, "PRAGMA journal_mode") == [("wal",)]
    assert await on_reader(broker, "PRAGMA journal_mode") == [("wal",)]


async def test_the_log_stays_short(broker: Broker) -> None:
    """SQLite's own checkpoints stay enabled."""
    [(pages,)] = await on_writer(broker, "PRAGMA wal_autocheckpoint")
    assert 0 < pages <= 10_000


async def test_the_file_stays_the_same_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    async with Broker("sqlite:///jobs.db", config=BrokerConfig(duties=False)) as broker:
        monkeypatch.chdir(there)
        await broker.enqueue("q")
        assert (await broker.stats("q")).pending == 1
    async with broker:
        assert len(await broker.claim("q")) == 1
    assert list(there.iterdir()) == []


async def test_the_log_shrinks_after_a_long_read(broker: Broker, path: Path) -> None:
    """A reader with an open transaction blocks the reuse of the log, so that it grows."""
    log = path.with_name("jobs.db-wal")

    async def write_many() -> None:
        for number in range(100):
            await broker.kv_put(b"large", bytes([number]) * 2**18)

    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM dayjob_kv").fetchone()
        await write_many()
        assert log.stat().st_size > 17 * 2**20
    await write_many()
    await broker.kv_put(b"large", b"small")
    assert log.stat().st_size <= 17 * 2**20


@pytest.mark.parametrize(("options", "mode"), [("", 0o600), ("?mode=0640", 0o640), ("?mode=666", 0o666)])
async def test_new_files_are_readable_as_the_url_asks(tmp_path: Path, options: str, mode: int) -> None:
    before = os.umask(0)
    try:
        async with Broker(
            f"sqlite:///{tmp_path}/jobs.db{options}", config=BrokerConfig(duties=False)
        ) as broker:
            await broker.enqueue("q")
            names = ("jobs.db", "jobs.db-wal", "jobs.db-shm")
            found = {(tmp_path / name).stat().st_mode & 0o777 for name in names}
    finally:
        os.umask(before)
    assert found == {mode}


async def test_the_permissions_of_an_existing_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o644)
    async with Broker(f"sqlite:///{path}?mode=0600", config=BrokerConfig(duties=False)) as broker:
        await broker.enqueue("q")
    assert path.stat().st_mode & 0o777 == 0o644


async def test_the_target_of_a_symbolic_link_is_created_with_the_permissions(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
    async with Broker(f"sqlite:///{tmp_path}/link.db", config=BrokerConfig(duties=False)):
        assert (tmp_path / "jobs.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", ["ro", "0400", "1777", "", "0o600"])
def test_other_permissions_are_refused(tmp_path: Path, mode: str) -> None:
    with pytest.raises(ConfigError, match="such as 0640"):
        create_engine(f"sqlite:///{tmp_path}/jobs.db?mode={mode}", SYSTEM)
