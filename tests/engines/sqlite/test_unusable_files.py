"""Unusable files are refused with the path and a remedy, and stay unchanged."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, ConfigError, DayjobError, EngineUnavailable
from tests.engines.sqlite.roles import open_without_rights
from tests.support.processes import Spawn

QUIET = BrokerConfig(duties=False)
HEADER = 100
PAGE = 4096


async def make_queue(path: Path, jobs: int = 3) -> None:
    async with Broker(f"sqlite:///{path}", config=QUIET) as broker:
        for number in range(jobs):
            await broker.enqueue("q", b"x" * 1000, headers={"number": str(number)})


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return every file below the folder with its content."""
    return {
        str(found.relative_to(folder)): found.read_bytes() if found.is_file() else None
        for found in sorted(folder.rglob("*"))
    }


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def make_folder(path: Path) -> None:
    path.mkdir()


async def refused(path: Path, error: type[DayjobError], *words: str) -> None:
    """Opening raises the error with the path and the words, each time."""
    before = contents(path.parent) if path.parent.is_dir() else {}
    for _ in range(2):
        with pytest.raises(error) as caught:
            await Broker(f"sqlite:///{path}").open()
        text = str(caught.value)
        assert str(path) in text
        for word in words:
            assert word in text, text
    assert (contents(path.parent) if path.parent.is_dir() else {}) == before


async def test_a_layout_from_the_future_is_refused(path: Path) -> None:
    await make_queue(path)
    _change(path, "UPDATE dayjob_meta SET value = 1000 WHERE key = 'layout'")
    await refused(path, ConfigError, "layout 1000", "upgrade dayjob")


def _change(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql)
    connection.close()


@pytest.mark.parametrize("size", [2, 15, 16, 99, 100, 512, 5000, 100_000])
async def test_a_file_that_is_not_a_database_is_refused(path: Path, size: int) -> None:
    write(path, (b"once upon a time " * 10_000)[:size])
    await refused(path, ConfigError, "is not a SQLite database", "name another file")


async def test_a_folder_is_refused(path: Path) -> None:
    make_folder(path)
    await refused(path, ConfigError, "is a folder", "name a file in it")


async def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    await refused(tmp_path / "missing" / "jobs.db", ConfigError, "does not exist", "create it first")
    assert not (tmp_path / "missing").exists()


async def test_a_path_that_leads_through_a_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "file", b"text")
    await refused(tmp_path / "file" / "jobs.db", ConfigError, "does not exist", "create it first")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no user, not even root, may write to /proc")
async def test_a_folder_that_accepts_no_files_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'/proc/self/jobs\.db' can't be opened .* check the permissions"):
        await Broker("sqlite:////proc/self/jobs.db").open()


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A folder that another user may read. pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="dayjob-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def writable_folder(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o777)


def writable_file(path: Path) -> None:
    path.chmod(0o666)
    path.parent.chmod(0o555)


def nothing_writable(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)


def make_read_only(folder: Path) -> None:
    folder.chmod(0o555)


def unreadable(path: Path) -> None:
    path.chmod(0o000)
    path.parent.chmod(0o777)


@pytest.mark.slow
@pytest.mark.parametrize("protect", [writable_folder, writable_file, nothing_writable, unreadable])
async def test_a_file_without_permission_is_refused(
    path: Path, public: Path, spawn: Spawn, protect: Callable[[Path], None]
) -> None:
    """Opened by a user to whom permissions apply, also when the tests run as root."""
    guarded = public / "jobs.db"
    await make_queue(guarded)
    protect(guarded)
    before = contents(public)
    child = await spawn(open_without_rights, f"sqlite:///{path}", f"sqlite:///{guarded}")
    error, text = await child.receive()
    assert error == "ConfigError", text
    assert str(guarded) in text
    assert "check the permissions" in text
    assert await child.wait() == 0
    assert contents(public) == before


@pytest.mark.slow
async def test_a_new_file_in_a_folder_without_permission_is_refused(
    path: Path, public: Path, spawn: Spawn
) -> None:
    make_read_only(public)
    child = await spawn(open_without_rights, f"sqlite:///{path}", f"sqlite:///{public}/jobs.db")
    error, text = await child.receive()
    assert error == "ConfigError", text
    assert "check the permissions" in text
    assert contents(public) == {}


async def test_a_file_whose_layout_is_unreadable_is_refused(path: Path) -> None:
    await make_queue(path)
    damage(path, HEADER, PAGE)
    await refused(path, EngineUnavailable, "malformed", "check the file")


async def test_a_file_that_is_damaged_throughout_is_refused(path: Path) -> None:
    await make_queue(path)
    damage(path, HEADER, 10 * PAGE)
    await refused(path, EngineUnavailable, "malformed", "check the file")


async def test_a_file_that_was_cut_off_is_refused(path: Path) -> None:
    await make_queue(path, jobs=50)
    os.truncate(path, PAGE)
    await refused(path, EngineUnavailable, "malformed", "check the file")


def damage(path: Path, start: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xde\xad\xbe\xef" * ((end - start) // 4))


async def test_damage_found_later_fails_only_the_calls_that_read_it(path: Path, url: str) -> None:
    await make_queue(path, jobs=50)
    [(root,)] = rows(path, "SELECT rootpage FROM sqlite_master WHERE name = 'dayjob_jobs'")
    damage(path, (root - 1) * PAGE, root * PAGE)
    async with Broker(url, config=QUIET) as broker:
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match="malformed"):
                await broker.claim("q")
            with pytest.raises(EngineUnavailable, match="malformed"):
                await broker.jobs("q")
        assert (await broker.stats("q")).pending == 50
        await broker.kv_put(b"key", b"value")
        assert await broker.kv_get(b"key") == b"value"


def rows(path: Path, sql: str) -> list[tuple[int, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


async def test_an_empty_file_becomes_a_queue(path: Path) -> None:
    write(path, b"")
    await make_queue(path)
    assert len(rows(path, "SELECT 1 FROM dayjob_jobs")) == 3


async def test_a_database_of_the_user_keeps_its_content(path: Path) -> None:
    _change(path, "CREATE TABLE orders (number INTEGER)")
    _change(path, "INSERT INTO orders VALUES (7)")
    await make_queue(path)
    assert rows(path, "SELECT number FROM orders") == [(7,)]
    assert len(rows(path, "SELECT 1 FROM dayjob_jobs")) == 3
