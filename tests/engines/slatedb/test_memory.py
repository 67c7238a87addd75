"""The memory of a process that writes much to object storage is bounded, and so are the log's objects."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dayjob.engines.slatedb import settings as slatedb_settings
from dayjob.engines.slatedb.database import Database
from dayjob.engines.slatedb.settings import SlateSettings
from tests.support.workers import until

MEBIBYTE = 1 << 20


@pytest.mark.slow
def test_memory_does_not_grow_with_the_payloads_written(tmp_path: Path) -> None:
    """SlateDB caches each block that it writes, and the payload cache holds 64 MiB: 330 MiB for 192 written.

    The memory is read when the tables are flushed and the allocator has returned its free pages.
    """
    program = """
        import asyncio, ctypes, os, sys
        from dayjob import Broker, BrokerConfig, NewJob
        from dayjob.runtime.process import rss

        trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)

        async def main():
            async with Broker(sys.argv[1], config=BrokerConfig(duties=False)) as broker:
                first = rss()
                for _ in range(24):
                    await broker.enqueue_many([NewJob("q", os.urandom(1 << 20)) for _ in range(8)])
                grown = []
                for _ in range(20):
                    await asyncio.sleep(0.25)
                    trim(0)
                    grown.append(rss() - first)
                print(min(grown))

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), f"file://{tmp_path / 'jobs'}"],
        capture_output=True, text=True, timeout=110, check=False, env={**os.environ, "PYTHONPATH": "src"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout) / MEBIBYTE
    assert grown < 240, f"{grown:.0f} MiB"


async def test_log_objects_that_are_in_tables_are_removed_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default SlateDB removes them after five to fifteen minutes: 40,000 of a busy worker."""
    assert slatedb_settings._LOG_KEPT_SECONDS == 60
    monkeypatch.setattr(slatedb_settings, "_LOG_KEPT_SECONDS", 1)
    settings = SlateSettings(
        url="file://…", store="file:///", path=str(tmp_path / "jobs"), flush_ms=20, timeout=20, beat=1
    )
    database = Database(settings, await settings.open_writer())
    for number in range(20):
        await database.write({b"%d" % number: b"value"})
        await database.flush()
    log = tmp_path / "jobs" / "wal"
    assert len([*log.iterdir()]) >= 20
    await database.flush(table=True)
    await until(lambda: len([*log.iterdir()]) <= 3)
    await database.close()
