"""``python -m benchmarks``: run the measures, show what they found, fail if what must hold doesn't."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import (
    batching,
    bloat,
    crews,
    duties,
    flatness,
    importing,
    object_storage,
    postgres,
    redis_workers,
    report,
    speed,
    waiting,
    workers,
)
from benchmarks.findings import Finding
from benchmarks.run import ENGINES, MEASURES, Measure, new_run

THEMES = (
    batching, flatness, importing, speed, waiting, workers, postgres, crews, bloat, redis_workers,
    object_storage, duties,
)  # fmt: skip
"""Importing them registers their measures."""


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MEASURES]
    if unknown:
        parser.error(f"no measure is named {', '.join(unknown)}: pass some of {', '.join(MEASURES)}")
    chosen = _choose(options.names, options.engine)
    if not chosen:
        parser.error(f"none of these measures is about the {options.engine} engine: leave out --engine")
    commit = report.current_commit()  # asked before the run: somebody may commit during it
    # A handler of our own: asyncio's would wait for the next await, and a side may be asked for long.
    signal.signal(signal.SIGINT, _interrupt)
    try:
        findings, servers = _perform(chosen, quick=options.quick)
    except KeyboardInterrupt:
        print("interrupted: nothing was measured to the end", file=sys.stderr)
        return 130
    report.print_table(findings)
    summary = report.new_report(findings, commit, _command(options), servers)
    if options.json is not None:
        options.json.write_bytes(report.to_json(summary))
    if options.record:
        report.append_to_log(summary)
    return int(any(finding.failed for finding in findings))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    measures = "\n".join(f"  {measure.name:18}{measure.about}" for measure in MEASURES.values())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure dayjob. Exits with 1 if a figure that must hold does not.",
        epilog=f"measures:\n{measures}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="measure", help="what to measure (default: everything)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs and fewer rounds")
    parser.add_argument("--engine", choices=ENGINES, help="only the measures about this engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings to a file as JSON")
    parser.add_argument("--record", action="store_true", help="append the findings to benchmarks/RESULTS.md")
    return parser


def _command(options: argparse.Namespace) -> str:
    """What to type to measure the same again; where the output went is nobody's business."""
    engine = ["--engine", options.engine] if options.engine else []
    quick = ["--quick"] if options.quick else []
    return " ".join(["python -m benchmarks", *options.names, *engine, *quick])


def _choose(names: Sequence[str], engine: str | None) -> list[tuple[str, Measure]]:
    """The measures with the engine of each, engine by engine: what one has filled is then let go."""
    wanted = [measure for measure in MEASURES.values() if not names or measure.name in names]
    return [
        (each, measure)
        for each in (*ENGINES, "")
        if engine in (None, each)
        for measure in wanted
        if each in (measure.engines or ("",))
    ]


def _perform(chosen: Sequence[tuple[str, Measure]], *, quick: bool) -> tuple[list[Finding], list[str]]:
    """What was found, and the servers that were needed for it."""
    findings: list[Finding] = []
    with new_run(quick=quick) as run:
        last = ""
        for engine, measure in chosen:
            if engine != last:
                run.close_sides()
                last = engine
            findings += asyncio.run(measure.function(run, engine))
        return findings, run.servers()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
