"""The memory of this process: the current size from ``/proc``, and the peak on systems without it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dayjob.runtime import process
from dayjob.runtime.process import rss

BLOCK = 64 * 2**20


def test_without_proc_the_peak_stays_after_memory_is_freed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    block = b"x" * BLOCK
    monkeypatch.setattr(process, "_PROC", tmp_path)
    peak = rss()
    assert peak >= len(block)
    del block
    assert rss() >= peak


@pytest.mark.parametrize(("platform", "size"), [("linux", 5000 * 1024), ("darwin", 5000)])
def test_the_unit_of_the_peak_depends_on_the_system(
    platform: str, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "_PROC", tmp_path)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("resource.getrusage", lambda _: SimpleNamespace(ru_maxrss=5000))
    assert rss() == size
