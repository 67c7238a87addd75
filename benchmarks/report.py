"""Findings as a table for people, as JSON for machines, and as an entry of the log."""

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

from benchmarks.findings import Finding

LOG = Path(__file__).with_name("RESULTS.md")
COLUMNS = ("measure", "engine", "what", "figures", "result", "wanted", "")
_WIDTH = 150
"""Columns of the table where no terminal limits it."""

_STYLES = {"pass": "green", "FAIL": "bold red", "ok": "green", "missed": "yellow"}


def cells(finding: Finding) -> tuple[str, ...]:
    return (
        finding.measure, finding.engine, finding.what, finding.figures, finding.shown, finding.wanted,
        finding.verdict,
    )  # fmt: skip


def print_table(findings: Sequence[Finding]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("result", "wanted") else "left")
    for finding in findings:
        *plain, verdict = cells(finding)
        style = _STYLES.get(verdict)
        table.add_row(*plain, f"[{style}]{verdict}[/]" if style else verdict)
    console.print(table)
    failed = [finding for finding in findings if finding.failed]
    asked = sum(finding.must and finding.passed is not None for finding in findings)
    if asked:
        console.print(f"\n{asked - len(failed)} of {asked} figures that must hold do.", highlight=False)


class Report(msgspec.Struct, frozen=True):
    """A run: when, of what, on what, and what it found."""

    date: str
    commit: str
    machine: str
    command: str
    findings: Sequence[Finding]


def new_report(findings: Sequence[Finding], commit: str, command: str, servers: Sequence[str]) -> Report:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = ", ".join([f"{os.cpu_count()} cores", python, f"SQLite {sqlite3.sqlite_version}", *servers])
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Report(date, commit, machine, command, findings)


def to_json(report: Report) -> bytes:
    plain = msgspec.to_builtins(report)
    for row, finding in zip(plain["findings"], report.findings, strict=True):
        row["passed"] = finding.passed
    return msgspec.json.format(msgspec.json.encode(plain)) + b"\n"


def append_to_log(report: Report) -> None:
    lines = [
        f"\n## {report.date}, {report.commit}\n",
        f"{report.machine}; `{report.command}`\n",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + " --- |" * len(COLUMNS),
        *("| " + " | ".join(cells(finding)) + " |" for finding in report.findings),
    ]
    with LOG.open("a", encoding="utf-8") as log:
        log.write("\n".join(lines) + "\n")


def current_commit() -> str:
    """The commit that is checked out, and whether the package differs from it."""
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
