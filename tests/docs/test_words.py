"""One idea, one word: the words that the glossary replaced are gone from code, docs and tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "tests")
SUFFIXES = {".py", ".pyi", ".sql", ".lua", ".md", ".html", ".js", ".css"}

REPLACED = {
    "Exchange": "Notifier",
    "courier": "the try of a call",
    "Courier": "the try of a call",
    "Cursors": "ScanHints",
    "troubles": "errors",
    "is_passing": "is_transient",
    "is_uncertain": "commit_unknown",
    "insert_within": "insert_tx",
    "enqueue_within": "enqueue_tx",
    "lanes": "slots",
    "Lanes": "slots",
    "Seat": "WaitingClaim",
    "Offer": "WaitingClaim",
    "Offers": "WaitingClaims",
    "hand_over": "handoff",
    "handover": "handoff",
    "Verdict": "SettleOp",
    "Remark": "Diagnostic",
    "write_notes": "compare_and_set",
    "set_aside": "quarantine",
    "inserting": "insert",
    "tidying": "counters",
    "Inserting": "insert",
    "Noting": "documents",
    "Tidying": "counters",
    "Intake": "Validator",
    "intake": "validation",
    "Roster": "WorkerRegistry",
    "Crew": "ProcessGroup",
    "Desk": "DashboardState",
    "desk": "state",
    "Chores": "Duty",
    "give_way": "yield_to_loop",
    "Twins": "ComparedEngines",
    "Happening": "Event",
    "hears": "receives",
    "verdict": "op",
    "Doubts": "UnconfirmedBatch",
    "doubts": "unconfirmed batches",
    "Ledger": "WriteBatch",
    "bodies": "payload_cache",
    "Bodies": "PayloadCache",
    "Ticket": "Token",
    "recall": "stored reply",
    "Chore": "bulk operation",
    "ledger": "write_batch",
    "roster": "worker registry",
    "crew": "processes",
    "chores": "duties, bulk operations",
    "patience": "timeout",
    "Listing": "JobQuery",
}
"""Whole words, in this spelling. Left out are words that plain English needs in another sense."""

AVOIDED = {
    "told": "returned, logged, notified",
    "somebody": "another process, a caller",
    "everybody": "all processes, all workers",
    "whoever": "the process, the caller",
    "whatever": "any, every, regardless of",
}
"""Words of prose, in any spelling, for which there is a noun."""


def texts() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path != Path(__file__):
                yield str(path.relative_to(ROOT)), path.read_text()


def found(words: dict[str, str], flags: int = 0) -> list[str]:
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", flags)
    return [
        f"{name}:{number}: {word}"
        for name, text in texts()
        for number, line in enumerate([name.removesuffix(Path(name).suffix), *text.splitlines()])
        for word in pattern.findall(line)
    ]


def test_no_replaced_word_is_left() -> None:
    assert found(REPLACED) == []


def test_prose_names_its_subject() -> None:
    assert found(AVOIDED, re.IGNORECASE) == []
