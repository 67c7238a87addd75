"""The table of the fields of a job has every public field, with its type."""

from __future__ import annotations

import re
from pathlib import Path

from dayjob import Job

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"


def documented() -> dict[str, str]:
    """Return the type of each field in the table."""
    section = PAGE.read_text().partition("### The fields of a `Job`")[2].partition("\n#")[0]
    found: dict[str, str] = {}
    for names, kind in re.findall(r"^\| (`.*?`) \| `(.*?)` \|", section, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind.replace("\\|", "|"))
    return found


def test_the_table_has_the_fields_and_the_types_of_a_job() -> None:
    fields = {
        name: Job.__annotations__[name]
        for name in Job.__struct_fields__
        if not name.startswith("_") and not name.endswith("_us")
    }
    fields |= {
        name: member.fget.__annotations__["return"]
        for name, member in vars(Job).items()
        if isinstance(member, property)
    }
    fields["dedup_until"] = "str"
    assert documented() == fields


def test_the_stored_instants_are_listed() -> None:
    text = PAGE.read_text()
    assert [name for name in Job.__struct_fields__ if name.endswith("_us") and f"`{name}`" not in text] == []
