"""``python -m tests.chaos``: a run under random faults, and the check of its record."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from dayjob.runtime import entropy
from dayjob.runtime.clock import SYSTEM
from tests.chaos.chaos_run import ChaosRun, Outcome, outcome
from tests.chaos.environments import ENVIRONMENTS
from tests.chaos.history import History
from tests.chaos.picture import picture
from tests.chaos.results import NAMES, append


async def run(engine: str, seconds: float, seed: int, folder: Path, rate: float) -> None:
    async with ENVIRONMENTS[engine](folder) as environment:
        begun = SYSTEM.elapsed()

        def on_fault(name: str) -> None:
            print(f"{SYSTEM.elapsed() - begun:7.1f} s  {name}", flush=True)

        await ChaosRun(environment, folder, seed, on_fault).run(seconds, rate=rate)


def report(found: Outcome) -> None:
    print(
        f"{found.engine}, seed {found.seed}: {sum(found.faults.values())} faults, {found.jobs:,} jobs, "
        f"{found.settled:,} settlements, {found.unanswered:,} without an answer, {found.at_risk:,} jobs "
        f"at risk; lost {found.lost}, double-settled {found.double_settled}, "
        f"worst recovery {found.recovery:.1f} s, longest pause {found.pause:.1f} s"
    )
    for violation in found.violations:
        print(f"  {violation}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--engine", choices=[*ENVIRONMENTS, "all"], default="sqlite")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=50.0, help="enqueues per second, at most")
    parser.add_argument("--record", action="store_true", help="append the figures to the log of runs")
    parser.add_argument("--picture", type=Path, default=None, help="write a picture of the run to this file")
    parser.add_argument("--check", type=Path, default=None, help="only check the record in this folder")
    options = parser.parse_args()
    seed = entropy.bits(32) if options.seed is None else options.seed
    failed = False
    for engine in ENVIRONMENTS if options.engine == "all" else [options.engine]:
        folder = options.check or Path(tempfile.mkdtemp(prefix=f"dayjob-chaos-{engine}-"))
        print(f"{engine}: seed {seed}, record in {folder}", flush=True)
        if options.check is None:
            asyncio.run(run(engine, options.minutes * 60, seed, folder, options.rate))
        found = outcome(engine, seed, options.minutes * 60, folder)
        report(found)
        if options.record:
            append(found)
        if options.picture is not None:
            title = f"Settlements per second, {NAMES[engine]}, seed {seed}"
            options.picture.write_text(picture(History.load(folder), title))
        failed = failed or bool(found.violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
