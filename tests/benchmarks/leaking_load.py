"""A side of a soak whose handlers leak 40 KiB per job: a child process of ``test_soak``."""

from __future__ import annotations

import sys

from benchmarks.child import Answer, run
from benchmarks.load import Recorder
from benchmarks.soak_load import both

_LEAKED: list[bytes] = []


class LeakingRecorder(Recorder):
    def started(self, stamp: float) -> None:
        _LEAKED.append(b"x" * 40_960)
        super().started(stamp)


async def leak(url: str, number: int) -> Answer:
    return await both(url, number, LeakingRecorder())


if __name__ == "__main__":
    run({"both": leak}, sys.argv[1:])
