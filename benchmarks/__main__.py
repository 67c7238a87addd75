"""``python -m benchmarks``: run the measures, print the results, fail if a required bound is missed."""

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
    duties,
    flatness,
    flow,
    import_time,
    large_fleet,
    object_storage,
    offered_load,
    postgres,
    rate_accuracy,
    redis_workers,
    report,
    single_enqueue,
    speed,
    two_workers,
    wake_up,
    workers,
)
from benchmarks.results import Result
from benchmarks.run import ENGINES, MEASURES, Measure, new_run

THEMES = (
    batching, flatness, flow, rate_accuracy, import_time, speed, wake_up, workers, postgres, two_workers,
    bloat, redis_workers, single_enqueue, object_storage, duties, offered_load, large_fleet,
)  # fmt: skip
"""The import of a theme registers its measures."""


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MEASURES]
    if unknown:
        parser.error(f"no measure is named {', '.join(unknown)}: pass some of {', '.join(MEASURES)}")
    chosen = _choose(options.names, options.engine)
    if not chosen:
        parser.error(f"none of these measures is about the {options.engine} engine: leave out --engine")
    commit = report.current_commit()  # before the run, because HEAD may move during it
    # Our own handler: asyncio's waits for the next await, and a call to a child process may block for long.
    signal.signal(signal.SIGINT, _interrupt)
    try:
        results, servers = _perform(chosen, quick=options.quick)
    except KeyboardInterrupt:
        print("interrupted: no results", file=sys.stderr)
        return 130
    report.print_table(results)
    summary = report.new_report(results, commit, _command(options), servers)
    if options.json is not None:
        options.json.write_bytes(report.to_json(summary))
    if options.record:
        report.append_to_log(summary)
    return int(any(result.failed for result in results))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    measures = "\n".join(f"  {measure.name:18}{measure.description}" for measure in MEASURES.values())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure dayjob. Exits with 1 if a required bound is missed.",
        epilog=f"measures:\n{measures}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="measure", help="measures to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs and fewer rounds")
    parser.add_argument("--engine", choices=ENGINES, help="only the measures about this engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file as JSON")
    parser.add_argument("--record", action="store_true", help="append the results to benchmarks/RESULTS.md")
    return parser


def _command(options: argparse.Namespace) -> str:
    """Return the command that repeats the run, without the options for its output."""
    engine = ["--engine", options.engine] if options.engine else []
    quick = ["--quick"] if options.quick else []
    return " ".join(["python -m benchmarks", *options.names, *engine, *quick])


def _choose(names: Sequence[str], engine: str | None) -> list[tuple[str, Measure]]:
    """Return the measures with their engines, engine by engine, so that one engine's stores can be closed."""
    chosen = [measure for measure in MEASURES.values() if not names or measure.name in names]
    return [
        (each, measure)
        for each in (*ENGINES, "")
        if engine in (None, each)
        for measure in chosen
        if each in (measure.engines or ("",))
    ]


def _perform(chosen: Sequence[tuple[str, Measure]], *, quick: bool) -> tuple[list[Result], list[str]]:
    """Return the results, and the servers that were started."""
    results: list[Result] = []
    with new_run(quick=quick) as run:
        last = ""
        for engine, measure in chosen:
            if engine != last:
                run.close_stores()
                last = engine
            results += asyncio.run(measure.function(run, engine))
        return results, run.servers()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
