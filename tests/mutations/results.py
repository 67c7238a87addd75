"""The page with the result of each mutation, ``RESULTS.md``."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from tests.mutations.table import GROUPS, of_group

PAGE = Path(__file__).with_name("RESULTS.md")

_INTRODUCTION = """\
# Mutations

Each line is one place of the source that was broken on purpose, and the first test that noticed.
`make mutations` writes this page. The section `broker` has the broker, the duties and the worker, which all
engines share. Seconds include the start of pytest and of the servers, on a busy machine of two cores.
"""
_HEAD = ["| mutation | killed by | seconds |", "| --- | --- | --- |"]
_ROW = re.compile(r"^\| (.+?) \| (?:\*\*survived\*\*|`(.+)`) \| (\d+) \|$")


class Kill(Struct, frozen=True):
    """The test that noticed a mutation, None if it survived, and the seconds until then."""

    group: str
    mutation: str
    test: str | None
    seconds: float


Kills = Mapping[tuple[str, str], Kill]
"""By group and mutation."""


def parse(page: str) -> dict[tuple[str, str], Kill]:
    kills: dict[tuple[str, str], Kill] = {}
    group = ""
    for line in page.splitlines():
        group = line.removeprefix("## ") if line.startswith("## ") else group
        if found := _ROW.match(line):
            kills[group, found[1]] = Kill(group, found[1], found[2], float(found[3]))
    return kills


def render(kills: Kills) -> str:
    """Return the page, in the order of the table. Mutations that no longer exist are left out."""
    page = _INTRODUCTION
    for group in GROUPS:
        names = [mutation.name for mutation in of_group(group)]
        found = [kills[group, name] for name in names if (group, name) in kills]
        survived = sum(kill.test is None for kill in found)
        lines = [f"| {kill.mutation} | {_shown(kill.test)} | {kill.seconds:.0f} |" for kill in found]
        summary = f"{len(found)} of {len(names)} mutations were tried, {survived} survived."
        page += "\n".join(["", f"## {group}", "", summary, "", *_HEAD, *lines, ""])
    return page


def _shown(test: str | None) -> str:
    return "**survived**" if test is None else f"`{test}`"


def record(kill: Kill) -> None:
    """Write the result to the page. Several runs may do so at a time."""
    with PAGE.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        page = render(parse(file.read()) | {(kill.group, kill.mutation): kill})
        file.seek(0)
        file.write(page)
        file.truncate()
