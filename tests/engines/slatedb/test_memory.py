"""The memory of a process that writes much to object storage is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
