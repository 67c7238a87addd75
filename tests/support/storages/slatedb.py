"""The object-storage engine under test, in a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from tests.engines.slatedb.damage import damage_job, make_database
from tests.support.storages.base import EngineUnderTest


def slatedb_url(directory: Path) -> str:
    return f"file://{directory}/jobs"


def _slatedb_damage(what: str) -> Callable[[Path, str], None]:
    def damage(directory: Path, id: str) -> None:
        damage_job(slatedb_url(directory), UUID(id).bytes, what)

    return damage


SLATEDB_DAMAGE = {
    what: _slatedb_damage(what)
    for what in (
        "no value",
        "no version",
        "cut short",
        "no body",
        "body of another type",
        "bad headers",
        "bad text",
    )
}


def _slatedb_in_a_file(directory: Path) -> str:
    (directory / "jobs").write_text("in the way")
    return slatedb_url(directory)


def _slatedb_among_files(directory: Path) -> str:
    (directory / "jobs").mkdir()
    (directory / "jobs" / "letter.txt").write_text("dear")
    return slatedb_url(directory)


def _slatedb_no_manifest(directory: Path) -> str:
    (directory / "jobs" / "manifest").mkdir(parents=True)
    (directory / "jobs" / "manifest" / "00000000000000000001.manifest").write_bytes(b"no manifest")
    return slatedb_url(directory)


def _slatedb_written(rows: str) -> Callable[[Path], str]:
    def make(directory: Path) -> str:
        make_database(directory / "jobs", rows)
        return slatedb_url(directory)

    return make


def _slatedb_option(text: str) -> Callable[[Path], str]:
    return lambda directory: f"{slatedb_url(directory)}?{text}"


SLATEDB_UNUSABLE: dict[str, Callable[[Path], str]] = {
    "is a file": _slatedb_in_a_file,
    "no such folder": lambda directory: f"file://{directory}/missing/jobs",
    "parent is a file": lambda directory: f"{_slatedb_in_a_file(directory)}/jobs",
    "holds other files": _slatedb_among_files,
    "not a database": _slatedb_no_manifest,
    "layout from the future": _slatedb_written("future"),
    "unreadable layout": _slatedb_written("unreadable"),
    "foreign database": _slatedb_written("foreign"),
    "unknown option": _slatedb_option("colour=blue"),
    "bad flush_ms": _slatedb_option("flush_ms=0"),
    "bad takeover": _slatedb_option("takeover=yes"),
    "bad timeout": _slatedb_option("timeout=long"),
    "region of a folder": _slatedb_option("region=eu-west-1"),
    "no path": lambda directory: "file:///",
    "a host": lambda directory: "file://host/jobs",
    "nothing to read": _slatedb_option("readonly=1"),
    "no bucket": lambda directory: "s3:///jobs",
    "region of another store": lambda directory: "gs://bucket/jobs?region=eu-west-1",
}


def _slatedb_snapshot(directory: Path) -> Callable[[], None]:
    shutil.copytree(directory / "jobs", directory / "snapshot")

    def restore() -> None:
        shutil.rmtree(directory / "jobs")
        (directory / "snapshot").rename(directory / "jobs")

    return restore


SLATEDB = EngineUnderTest(
    "slatedb", slatedb_url, SLATEDB_DAMAGE, SLATEDB_UNUSABLE, snapshot=_slatedb_snapshot
)
