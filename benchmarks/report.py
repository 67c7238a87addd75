"""The results as a table, as JSON, and as an entry of the log."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.results import Result

LOG = Path(__file__).with_name("RESULTS.md")
COLUMNS = ("measure", "engine", "description", "figures", "result", "bound", "")
_WIDTH = 150
"""The width of the table without a terminal."""

_STYLES = {"pass": "green", "FAIL": "bold red", "ok": "green", "missed": "yellow"}


def cells(result: Result) -> tuple[str, ...]:
    return (
        result.measure, result.engine, result.description, result.figures, result.value_text,
        result.bound_text, result.status,
    )  # fmt: skip


def print_table(results: Sequence[Result]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("result", "bound") else "left")
    for result in results:
        *plain, status = cells(result)
        style = _STYLES.get(status)
        table.add_row(*plain, f"[{style}]{status}[/]" if style else status)
    console.print(table)
    failed = [result for result in results if result.failed]
    required = sum(result.required and result.passed is not None for result in results)
    if required:
        console.print(f"\n{required - len(failed)} of {required} required bounds hold.", highlight=False)


class Report(msgspec.Struct, frozen=True):
    """One run: date, commit, machine, command and results."""

    date: str
    commit: str
    machine: str
    command: str
    results: Sequence[Result]


def new_report(results: Sequence[Result], commit: str, command: str, servers: Sequence[str]) -> Report:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = ", ".join([f"{os.cpu_count()} cores", python, f"SQLite {sqlite3.sqlite_version}", *servers])
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Report(date, commit, machine, command, results)


def to_json(report: Report) -> bytes:
    plain = msgspec.to_builtins(report)
    for row, result in zip(plain["results"], report.results, strict=True):
        row["passed"] = result.passed
    return msgspec.json.format(msgspec.json.encode(plain)) + b"\n"


def append_to_log(report: Report) -> None:
    lines = [
        f"\n## {report.date}, {report.commit}\n",
        f"{report.machine}; `{report.command}`\n",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + " --- |" * len(COLUMNS),
        *("| " + " | ".join(cells(result)) + " |" for result in report.results),
    ]
    with LOG.open("a", encoding="utf-8") as log:
        log.write("\n".join(lines) + "\n")


def current_commit() -> str:
    """Return the checked-out commit, marked if the package differs from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return f"{commit} with changes" if _git("status", "--porcelain", "--", "src") else commit
    except (OSError, subprocess.CalledProcessError):
        return "no commit"


def _git(*arguments: str) -> str:
    ran = subprocess.run(
        ["git", *arguments], cwd=LOG.parents[1], capture_output=True, text=True, check=True, timeout=30
    )
    return ran.stdout.strip()
